"""What each part of a broker needs of the others. Nothing here starts anything."""
