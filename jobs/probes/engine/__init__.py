"""Family ``engine``: one step of the subject's training engine, with each stage of ZeRO and each way to make a loss."""
