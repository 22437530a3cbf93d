"""Hugging Face's Trainer fine-tunes a small GPT with LoRA; five lines are Sealift's, marked below.

    torchrun --standalone --nproc-per-node 2 examples/frameworks/trainer.py

See docs/howto/frameworks/transformers.md.
"""

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import sealift.integrations.process_group  # noqa: F401 - new
from sealift.data import SealedDataset, owner_keys  # new


def main() -> None:
    """Train, and say how it went."""
    dist.init_process_group("sealift")  # new
    with owner_keys("vault.db", "north.key", passphrase_file="pass") as keys:  # new
        rows = SealedDataset("sealed/*.sealed", keys)  # was torch.load("rows.pt")
    torch.manual_seed(0)
    gpt = GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    )
    model = get_peft_model(
        gpt, LoraConfig(target_modules=["c_attn"], task_type="CAUSAL_LM")
    )
    settings = TrainingArguments(
        output_dir="trained",
        per_device_train_batch_size=8,
        num_train_epochs=2,
        learning_rate=0.01,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    done = Trainer(model=model, args=settings, train_dataset=rows).train()
    if settings.process_index == 0:
        print(f"steps {done.global_step}, loss {done.training_loss:.9f}")


if __name__ == "__main__":
    main()
