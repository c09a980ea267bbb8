# The images with their labels, for amd64 and arm64, of which one needs an emulator. `make image` calls this. By hand:
#
#   docker buildx bake --file docker-bake.hcl
#   docker buildx bake --file docker-bake.hcl --set '*.platform=linux/amd64' --load aerobee
#
# `make image` sets the variables.
variable "AEROBEE_VERSION" { default = "unknown" }
variable "AEROBEE_COMMIT" { default = "" }
variable "AEROBEE_BASE" { default = "python:3.11-slim-bookworm" }
# Of the names of images: a registry's address and a slash.
variable "AEROBEE_PREFIX" { default = "" }
# Address of the repository; no label is set without one.
variable "AEROBEE_SOURCE" { default = "" }

group "default" {
  targets = ["aerobee", "aerobee-spark", "aerobee-etcd"]
}

target "common" {
  context   = "."
  platforms = ["linux/amd64", "linux/arm64"]
  args      = { AEROBEE_VERSION = AEROBEE_VERSION, AEROBEE_COMMIT = AEROBEE_COMMIT, BASE = AEROBEE_BASE }
  labels    = AEROBEE_SOURCE == "" ? {} : { "org.opencontainers.image.source" = AEROBEE_SOURCE }
}

target "aerobee" {
  inherits   = ["common"]
  dockerfile = "deploy/Dockerfile"
  tags       = ["${AEROBEE_PREFIX}aerobee:latest", "${AEROBEE_PREFIX}aerobee:${AEROBEE_VERSION}"]
}

target "aerobee-spark" {
  inherits   = ["common"]
  dockerfile = "deploy/spark/Dockerfile"
  tags       = ["${AEROBEE_PREFIX}aerobee-spark:latest", "${AEROBEE_PREFIX}aerobee-spark:${AEROBEE_VERSION}"]
}

target "aerobee-etcd" {
  inherits   = ["common"]
  dockerfile = "deploy/etcd/Dockerfile"
  tags       = ["${AEROBEE_PREFIX}aerobee-etcd:latest", "${AEROBEE_PREFIX}aerobee-etcd:${AEROBEE_VERSION}"]
}
