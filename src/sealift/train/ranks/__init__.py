"""Several accelerators that train one model together: the plan ``ddp``."""
