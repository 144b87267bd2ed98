"""Family ``tiled``: feed-forward layers and losses shard by shard, against the same functions in one piece."""
