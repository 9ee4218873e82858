"""Where samples, entries and positions get an order or a share that is not theirs: the line that does it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pytest_torchcheck import Contract, Ints, Labels, TensorSpec, promises


def violated(contract, check):
    return [f for f in contract.check([check]).findings if f.status == "violated"]


class Ranked(nn.Module):
    """Takes samples by their mean, the greatest first, and puts them back."""

    def __init__(self, wrong):
        super().__init__()
        self.wrong, self.head = wrong, nn.Linear(5, 3)

    def forward(self, x):
        rank = x.mean(1).argsort(descending=True)
        y = self.head(x[rank])
        if self.wrong:
            return y.index_select(0, rank)  # in the wrong order
        return y.index_select(0, rank.argsort())


def test_samples_that_are_put_back_in_the_wrong_order():
    contract = Contract(model=lambda: Ranked(True), inputs="B 5", sizes={"B": (2, 8)})
    (finding,) = violated(contract, "batch-independence")
    assert finding.location.text.endswith("# in the wrong order")
    assert "rows are those of other samples" in finding.cause
    right = Contract(model=lambda: Ranked(False), inputs="B 5", sizes={"B": (2, 8)})
    assert not violated(right, "batch-independence")


class Rings(nn.Module):
    """Sums messages over edges that are brought into the order of their ends."""

    def __init__(self, alone):
        super().__init__()
        self.alone, self.mix = alone, nn.Linear(7, 4)

    def forward(self, x, edges, lengths):
        by = (edges[1] * len(x) + edges[0]).argsort(stable=True)
        edges = edges[:, by]  # sorted
        lengths = lengths if self.alone else lengths[by]
        message = self.mix(torch.cat([x[edges[0]], lengths], dim=1)).tanh()
        return x.new_zeros(len(x), 4).index_add(0, edges[1], message)


@pytest.mark.parametrize("alone", [True, False])
def test_entries_that_are_sorted_without_what_belongs_to_them(alone):
    # a generator of its own: no two edges are equal
    draw = torch.Generator().manual_seed(3)
    pairs = torch.randperm(64, generator=draw)[:20]
    edges = torch.stack([pairs // 8, pairs % 8])
    inputs = {"x": torch.randn(8, 5), "edges": edges, "lengths": torch.randn(20, 2)}
    contract = Contract(
        model=lambda: Rings(alone),
        batch=(inputs, None),
        inputs={"x": "8 5", "edges": Ints("2 E", low=0, high=8), "lengths": TensorSpec("E 2")},
        sizes={"E": (1, 30)},
        batch_dim=None,
        promises=(promises.PermutationInvariant(inputs={"edges": 1, "lengths": 0}),),
    )
    found = violated(contract, "permutation-invariance")
    assert len(found) == alone
    if found:
        assert found[0].location.text.endswith("# sorted")
        assert "torch.cat" in found[0].cause


class Conditioned(nn.Module):
    """Adds an embedding of a class to each sample."""

    def __init__(self, first):
        super().__init__()
        self.first, self.embed, self.out = first, nn.Embedding(9, 6), nn.Linear(6, 2)

    def forward(self, x, kind):
        if self.first:
            kind = kind[:1].repeat(len(x))  # of the first
        return self.out(x + self.embed(kind))


def test_an_integer_of_one_sample_for_all():
    made = Contract(
        model=lambda: Conditioned(True),
        inputs=("B 6", Ints("B", low=0, high=9)),
        sizes={"B": (2, 8)},
    )
    (finding,) = violated(made, "batch-independence")
    assert finding.location.text.endswith("# of the first")


class Overlap(nn.Module):
    """A soft overlap over maps whose classes are in dimension 1."""

    def __init__(self, masked):
        super().__init__()
        self.masked = masked

    def forward(self, scores, labels):
        known = labels.ne(9).unsqueeze(1)
        wanted = F.one_hot(labels.where(labels.ne(9), 0), 3).movedim(-1, 1) * known
        chances = scores.softmax(1)  # of all positions
        if self.masked:
            chances = chances * known
        both = (chances * wanted).sum((0, 2, 3))
        return 1 - (2 * both / (chances.sum((0, 2, 3)) + wanted.sum((0, 2, 3)))).mean()  # summed


@pytest.mark.parametrize("masked", [True, False])
def test_predictions_that_no_mask_leaves_out(masked):
    labels = torch.randint(3, (4, 6, 6))
    labels[:, 0] = 9
    contract = Contract(
        model=lambda: nn.Conv2d(2, 3, 3, padding=1),
        batch=((torch.randn(4, 2, 6, 6),), labels),
        inputs="B 2 H W",
        targets=Labels(classes=3, ignore_index=9),
        loss=Overlap(masked),
    )
    found = violated(contract, "ignored-targets")
    assert len(found) == (not masked)
    if found:
        places = [found[0].location, *(c.location for c in found[0].culprits)]
        assert {"# summed", "# of all positions"} <= {
            p.text[p.text.find("#") :] for p in places if p
        }


def test_the_statement_that_chose_a_part_of_the_parameters_is_named():
    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = 1e3 * F.mse_loss(model(*inputs), targets)
        loss.backward()
        part = list(model[0].parameters())  # a part
        torch.nn.utils.clip_grad_norm_(part, 1.0)
        optimizer.step()
        return loss.detach()

    contract = Contract(
        model=lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)),
        inputs="B 4",
        targets="B 2",
        loss=F.mse_loss,
        train_step=step,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1e-4),
        promises=(promises.ClipsGradients(1.0),),
    )
    (finding,) = violated(contract, "gradient-clipping")
    assert finding.code == "clip-partial"
    assert finding.location.text.endswith("# a part")


class Redrawn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, keep):
        ctx.keep = keep
        return drop(x, keep)

    @staticmethod
    def backward(ctx, grad):
        again = drop(grad, ctx.keep)  # drawn again
        return again, None


def drop(x, keep):
    return x * torch.bernoulli(torch.full_like(x, keep)) / keep


def test_the_line_of_backward_that_draws_is_named_wherever_the_draw_stands():
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    contract = Contract(functions={"redrawn": (Redrawn.apply, (x, 0.5))})
    codes = {f.code: f for f in violated(contract, "gradcheck")}
    assert codes["stochastic-backward"].location.text.endswith("# drawn again")


class Scattered(nn.Module):
    """Nodes of several graphs as one graph, with edges that count from the first node of their own."""

    def __init__(self, shifted, again=False):
        super().__init__()
        self.shifted, self.again, self.mix = shifted, again, nn.Linear(4, 3)

    def forward(self, x, pairs):
        count, nodes = x.shape[:2]
        first = nodes * torch.arange(count)[:, None, None] if self.shifted else 0
        start, end = (pairs + first).movedim(0, 1).flatten(1)  # counted
        if self.again:
            start = start.long().contiguous()
        flat = x.flatten(0, 1)
        return self.mix(flat + torch.zeros_like(flat).index_add(0, end, flat[start])).view(
            count, nodes, 3
        )


@pytest.mark.parametrize("shifted", [True, False])
def test_an_index_that_leads_into_another_sample(shifted):
    contract = Contract(
        model=lambda: Scattered(shifted),
        inputs=("B 5 4", Ints("B 2 E", low=0, high=5)),
        sizes={"B": (2, 6), "E": (3, 9)},
    )
    found = violated(contract, "batch-independence")
    assert len(found) == (not shifted)
    if found:
        assert "leads into other samples" in found[0].cause
        assert any(c.location and c.location.text.endswith("# counted") for c in found[0].culprits)
        assert any(
            c.name == "first" and c.location and "if self.shifted" in c.location.text
            for c in found[0].culprits
        )


class LastWord(nn.Module):
    """Reads both directions of a recurrence over packed sequences at the last word, or as they end."""

    def __init__(self, ends):
        super().__init__()
        self.ends, self.rnn = ends, nn.LSTM(4, 6, batch_first=True, bidirectional=True)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        states, (last, _) = self.rnn(packed)
        if self.ends:
            return torch.cat([last[0], last[1]], dim=1)
        padded, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True)
        return padded[torch.arange(len(x)), lengths - 1]  # one word


def test_a_packed_recurrence_that_is_read_at_one_position():
    lengths = torch.tensor([5, 3, 4, 2])

    def found(ends):
        contract = Contract(
            model=lambda: LastWord(ends),
            batch=((torch.randn(4, 5, 4), lengths), torch.randn(4, 12)),
            loss=F.mse_loss,
        )
        return violated(contract, "gradients-exist")

    (finding,) = found(ends=False)
    assert finding.code == "grad-zero"
    assert finding.location.text.endswith("# one word")
    assert "taken its first step" in finding.cause
    assert not found(ends=True)


class ByAttribute(nn.Module):
    """Centres along a dimension that an attribute names; two branches of the constructor set it."""

    def __init__(self, wrong):
        super().__init__()
        if wrong:
            self.along = 0  # of samples
        else:
            self.along = 1
        self.mix = nn.Linear(5, 3)

    def centred(self, x):
        return x - x.mean(dim=self.along, keepdim=True)

    def forward(self, x):
        return self.mix(self.centred(x))  # from here


@pytest.mark.parametrize("wrong", [True, False])
def test_the_attribute_that_chooses_a_dimension_and_the_call_are_named(wrong):
    contract = Contract(model=lambda: ByAttribute(wrong), inputs="B 5", sizes={"B": (2, 8)})
    found = violated(contract, "batch-independence")
    assert len(found) == wrong
    if found:
        texts = {c.location.text for c in found[0].culprits if c.location}
        assert {
            "self.along = 0  # of samples",
            "return self.mix(self.centred(x))  # from here",
        } <= texts
        assert "self.along is set on line" in found[0].because
        assert "centred is called on line" in found[0].because


def test_a_rate_that_stays_is_no_slow_schedule():
    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.mse_loss(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.schedule.step()
        return loss.detach()

    def made(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1.0)
        return optimizer

    contract = Contract(
        model=lambda: nn.Linear(4, 2),
        inputs="B 4",
        targets="B 2",
        loss=F.mse_loss,
        train_step=step,
        optimizer=made,
        promises=(promises.Schedule([0.1 * 0.9**n for n in range(10)]),),
    )
    (finding,) = violated(contract, "schedule")
    assert "leaves the rate as it is" in finding.cause
    assert "all 10 rates used are 0.1" in finding.because


class Chunked(nn.Module):
    """Adds neighbours in pairs; what is to be sorted before only gets another name."""

    def __init__(self, ordered):
        super().__init__()
        self.ordered, self.mix = ordered, nn.Linear(4, 4)

    def forward(self, x):
        made = self.mix(x)
        rows = made  # another name
        if self.ordered:
            order = made[:, :, :1].argsort(1)
            rows = made.gather(1, order.expand_as(made))
        return rows.unflatten(1, (-1, 2)).prod(2).sum(1)


def test_another_name_of_the_same_tensor_is_said():
    def found(ordered):
        contract = Contract(
            model=lambda: Chunked(ordered),
            inputs="B 6 4",
            promises=(promises.PermutationInvariant(input=0, dim=1),),
        )
        return violated(contract, "permutation-invariance")

    (finding,) = found(ordered=False)
    assert "rows is another name for made on line" in finding.because
    assert any(c.location and c.location.text.endswith("# another name") for c in finding.culprits)
    assert not found(ordered=True)


class Contiguous(nn.Module):
    """Makes contiguous what is so already: the operation returns what it was given."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 6, batch_first=True, bidirectional=True)

    def forward(self, x):
        states, _ = self.rnn(x)
        return states.contiguous().contiguous()[:, -1]  # one position


def test_an_operation_that_returns_its_operand_ends_no_walk():
    contract = Contract(
        model=Contiguous,
        batch=((torch.randn(3, 5, 4),), torch.randn(3, 12)),
        loss=F.mse_loss,
    )
    (finding,) = violated(contract, "gradients-exist")
    assert finding.code == "grad-zero"
    assert finding.location.text.endswith("# one position")
    repeated = Contract(
        model=lambda: Scattered(False, again=True),
        inputs=("B 5 4", Ints("B 2 E", low=0, high=5)),
        sizes={"B": (2, 6), "E": (3, 9)},
    )
    (finding,) = violated(repeated, "batch-independence")
    assert "leads into other samples" in finding.cause
