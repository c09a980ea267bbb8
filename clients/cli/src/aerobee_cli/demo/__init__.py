"""The main job from end to end on real data, for `aerobee demo`."""
