"""Diagnosis of a cluster: what clients and operators would stumble over, one finding each."""
