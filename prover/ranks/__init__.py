"""Jobs on several ranks: the exchange between ranks, their collectives on the tape, and the layout of shards."""
