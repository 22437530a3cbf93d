"""Models that people train, as recipes: convolutions, ResNet-18, a GPT, and LoRA on it."""

from __future__ import annotations

from sealift.data.schema.schema import Field, Schema
from tests.unit.graph.models import HEAD, TAIL

IMAGES = Schema((Field("x", "float32", (3, 16, 16)), Field("y", "int64", classes=5)))
TOKENS = Schema((Field("x", "int64", (12,), classes=50),))
CNN = (
    HEAD
    + """
def build():
    return nn.Sequential(nn.Conv2d(3,8,3,2,1), nn.GroupNorm(4,8), nn.ReLU(), nn.Conv2d(8,16,3,padding="same"), nn.BatchNorm2d(16), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(16,5))
"""
    + TAIL
)
RESNET = (
    HEAD
    + """
class Block(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.c1 = nn.Conv2d(a, b, 3, stride, 1, bias=False); self.n1 = nn.BatchNorm2d(b)
        self.c2 = nn.Conv2d(b, b, 3, 1, 1, bias=False); self.n2 = nn.BatchNorm2d(b)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b)) if stride != 1 or a != b else None
    def forward(self, x):
        kept = x if self.down is None else self.down(x)
        x = self.relu(self.n1(self.c1(x)))
        x = self.n2(self.c2(x))
        x += kept
        return self.relu(x)
class ResNet(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        w = [64, 64, 128, 256, 512]
        self.layers = nn.Sequential(*(nn.Sequential(Block(w[i], w[i+1], 1 if i == 0 else 2), Block(w[i+1], w[i+1], 1)) for i in range(4)))
        self.pool = nn.AdaptiveAvgPool2d(1); self.fc = nn.Linear(512, classes)
    def forward(self, x):
        return self.fc(torch.flatten(self.pool(self.layers(self.stem(x))), 1))
def build():
    return ResNet()
def loss(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])
def configure_optimizers(model):
    o = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True)
    return [o], [torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=10), {"scheduler": torch.optim.lr_scheduler.LinearLR(o, total_iters=5), "interval": "step"}]
def evaluate(model, batch):
    out = model(batch["x"])
    return {"accuracy": (out.argmax(1) == batch["y"]).sum().item(), "loss": F.cross_entropy(out, batch["y"], reduction="sum").item(), "n": len(out)}
"""
)
GPT = (
    HEAD
    + """
import math
class LoRA(nn.Module):
    def __init__(self, own, rank=4, alpha=8):
        super().__init__(); self.own = own; self.scale = alpha / rank
        for p in own.parameters(): p.requires_grad = False
        self.a = nn.Parameter(torch.randn(rank, own.in_features) * 0.02); self.b = nn.Parameter(torch.zeros(own.out_features, rank))
    def forward(self, x): return self.own(x) + self.scale * (x @ self.a.T @ self.b.T)
class Attention(nn.Module):
    def __init__(self, d, heads, T):
        super().__init__(); self.qkv = nn.Linear(d, 3*d); self.out = nn.Linear(d, d); self.heads = heads; self.drop = nn.Dropout(0.1)
        self.register_buffer("mask", torch.tril(torch.ones(T, T)).view(1, 1, T, T), persistent=False)
    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.qkv(x).split(C, dim=2)
        k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        att = self.drop(F.softmax(att, dim=-1))
        return self.out((att @ v).transpose(1, 2).contiguous().view(B, T, C))
class Block(nn.Module):
    def __init__(self, d, heads, T):
        super().__init__(); self.n1 = nn.LayerNorm(d); self.at = Attention(d, heads, T); self.n2 = nn.LayerNorm(d)
        self.mlp = nn.ModuleDict(dict(up=nn.Linear(d, 4*d), act=nn.GELU(approximate="tanh"), down=nn.Linear(4*d, d)))
    def forward(self, x):
        x = x + self.at(self.n1(x))
        m = self.mlp
        return x + m.down(m.act(m.up(self.n2(x))))
class GPT(nn.Module):
    def __init__(self, vocab=50, T=11, d=32, heads=4, depth=2):
        super().__init__(); self.tok = nn.Embedding(vocab, d); self.pos = nn.Embedding(T, d); self.blocks = nn.ModuleList(Block(d, heads, T) for _ in range(depth)); self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab, bias=False); self.head.weight = self.tok.weight
    def forward(self, x):
        T = x.size(1)
        x = self.tok(x) + self.pos(torch.arange(T, device=x.device))
        for b in self.blocks: x = b(x)
        return self.head(self.norm(x))
    def training_step(self, batch, step):
        x, y = batch["x"][:, :-1], batch["x"][:, 1:]
        out = self(x)
        return F.cross_entropy(out.reshape(-1, out.size(-1)), y.reshape(-1))
    def configure_optimizers(self):
        decay = [p for p in self.parameters() if p.dim() > 1 and p.requires_grad]; no = [p for p in self.parameters() if p.dim() <= 1 and p.requires_grad]
        return torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": no, "weight_decay": 0.0}], lr=1e-3, betas=(0.9, 0.95))
def build():
    return GPT()
def predict(model, batch):
    return {"next": model(batch["x"][:, :-1])[:, -1].argmax(-1)}
"""
)
LORA = GPT.replace(
    """def build():
    return GPT()""",
    """def build():
    m = GPT()
    for p in m.parameters(): p.requires_grad = False
    for b in m.blocks: b.at.qkv = LoRA(b.at.qkv)
    return m""",
)
