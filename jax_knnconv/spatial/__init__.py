"""One large point set over many devices: nodes sharded by place, neighbours fetched by halo exchange.

    y[b, m, :] = bias + sum over k of x[b, indices[m, k], :] @ weight[slots[m, k]],    rows of x and y sharded

`partition_nodes` gives every device an equal, compact share of the nodes, `NodePartition.shard_table` derives from a
table what each device must receive from which other, and `knn_conv_sharded` is `jax_knnconv.knn_conv` on such shards.
"""

from jax_knnconv.spatial.convolution import knn_conv_sharded
from jax_knnconv.spatial.exchange import Exchange
from jax_knnconv.spatial.partition import NodePartition, partition_nodes
from jax_knnconv.spatial.table import ShardedTable

__all__ = ["Exchange", "NodePartition", "ShardedTable", "knn_conv_sharded", "partition_nodes"]
