"""Writes by index into memory that nobody filled, selections and lists with unknown parts, indices of sparse gradients."""
import torch
order, numbers = torch.tensor([5, 4, 3, 2, 1, 0], device="cuda"), torch.arange(6, device="cuda")
print(torch.empty_like(order).scatter_(0, order, numbers).tolist())
by_index = torch.empty_like(order)
by_index[order] = numbers
print(by_index.tolist())
part = torch.empty(8, dtype=torch.long, device="cuda")
part[:3] = 7
part[order[:3]] = numbers[:3]
print(part[:6].tolist())
part.index_put_((order,), numbers, accumulate=True)  # on what was there: unknown now
unknown = torch.randn(300, 300, device="cuda").sum(0)
print(torch.cat([unknown, torch.full((2,), 3.0, device="cuda")])[300:].tolist())
print(torch.where(torch.zeros(300, dtype=torch.bool, device="cuda"), unknown, -1e9)[:2].tolist())
index = torch.arange(8192, device="cuda") % 1000
sparse = torch.sparse_coo_tensor(index[None], torch.randn(8192, 4, device="cuda"), (2000, 4), check_invariants=False).coalesce()
print(sparse.indices().sum().item(), sparse.indices().unique().numel())
embedding = torch.nn.Embedding(200000, 128, sparse=True).cuda()
once = torch.randint(0, 200000, (8192,), device="cuda")
(embedding(once).sum() + embedding(torch.randint(0, 200000, (8192, 5), device="cuda")).sum()).backward()
torch.sparse_coo_tensor(index[None], torch.randn(8192, 4, device="cuda"), (2000, 4), check_invariants=False).coalesce()
gathered = embedding.weight.grad._indices()  # not touched by another tensor's kernels
print(embedding.weight.grad.coalesce()._indices().numel() == gathered.unique().numel() < 49152)
lengths = torch.tensor([3, 10, 7, 5])
packed = torch.nn.utils.rnn.pack_padded_sequence(torch.randn(4, 10, 3, device="cuda"), lengths, batch_first=True, enforce_sorted=False)
print(torch.nn.utils.rnn.pad_packed_sequence(packed)[1].tolist())
