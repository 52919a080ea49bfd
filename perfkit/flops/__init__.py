"""FLOPs of a model by named conventions, and of an op from its shapes.

spec          TransformerSpec: what a convention may ask about a model
presets       named models (data/presets.csv)
huggingface   a config.json -> TransformerSpec
conventions   palm, nanogpt, torchtitan, megatron, …: FLOPs per token, split into terms
calculator    model + speed + hardware -> MFU and HFU in every convention
batch         the same for the rows of a CSV file
op_costs      FLOPs and bytes of an operator from its input shapes
counting      count with torch's flop counter on the meta device (needs torch)
"""
