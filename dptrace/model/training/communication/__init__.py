"""The cost of communication: links, collectives, all-reduce algorithms, and the communication roofline."""
