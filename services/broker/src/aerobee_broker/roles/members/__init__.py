"""What decides who is master: elections by etcd, or options and a person."""
