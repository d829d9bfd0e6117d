"""Plan, cluster and model files: read with every fault named, written whole or not at all."""
