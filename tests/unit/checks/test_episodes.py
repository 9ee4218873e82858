"""What a step computes of rewards before the end of an episode holds no reward that comes after it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, TensorSpec

STEPS, COLUMNS, GAMMA, LAM = 10, 3, 0.9, 0.8


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.policy, self.value = nn.Linear(5, 16), nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, states):
        hidden = self.body(states).tanh()
        return self.policy(hidden), self.value(hidden).squeeze(-1)


class Recurrent(ActorCritic):
    """Its state begins again where a flag says that a step is the first of an episode."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(5, 5)

    def forward(self, states, starts=None):
        if starts is None:
            return super().forward(states)
        hidden, made = torch.zeros_like(states[0]), []
        for state, start in zip(states, starts, strict=True):
            hidden = self.cell(state, hidden * (1 - start)[:, None])
            made.append(hidden)
        return super().forward(torch.stack(made))


def told(
    computed,
    *,
    rewards=None,
    dones=None,
    model=ActorCritic,
    columns_first=False,
    names=True,
    flat=False,
    **more,
):
    """Train on what is computed of rewards, flags, values and the last values; return the finding of the check."""

    def train_step(model, optimizer, inputs, targets):
        states = inputs[0].movedim(1, 0) if columns_first else inputs[0]
        actions = targets["actions"] if names else targets[0]
        rewards, dones = (targets["rewards"], targets["dones"]) if names else targets[1:]
        logits, values = model(states, dones) if model_reads else model(states)
        with torch.no_grad():
            last = model(states[-1] + 1)[1]
            results = computed(rewards, dones, values.detach(), last)
            scaled = (results - results.mean()) / (results.std() + 1e-8)
        if columns_first:
            actions, scaled, results = actions.T, scaled.T, results.T
        chosen = logits.log_softmax(-1).gather(-1, actions[..., None]).squeeze(-1)
        loss = F.mse_loss(values, results) - (chosen * scaled).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    model_reads = model is Recurrent
    torch.manual_seed(1)
    states, actions = torch.randn(STEPS, COLUMNS, 5), torch.randint(0, 3, (STEPS, COLUMNS))
    rewards = torch.randn(STEPS, COLUMNS) if rewards is None else rewards
    if dones is None:
        dones = torch.zeros(STEPS, COLUMNS)
        dones[4, 0] = dones[2, 1] = dones[7, 1] = 1
    if flat:
        states, actions, rewards, dones = states[:, 1], actions[:, 1], rewards[:, 1], dones[:, 1]
    if columns_first:
        states, actions, rewards, dones = (
            t.movedim(1, 0) for t in (states, actions, rewards, dones)
        )
    targets = {"actions": actions, "rewards": rewards, "dones": dones}
    contract = Contract(
        model=model, train_step=train_step, inputs=(TensorSpec(None),),
        batch=((states,), targets if names else tuple(targets.values())),
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.01), batch_dim=None, **more,
    )  # fmt: skip
    return next(iter(contract.check(["step-losses"]).findings))


def advantages(rewards, values, last, cut, *, bootstrap=None, dim=0):
    """GAE along the first dimension; ``cut`` says what remains of the step after each step."""
    made, running, following = torch.zeros_like(rewards), torch.zeros_like(last), last
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + GAMMA * (bootstrap or cut)(t) * following - values[t]
        running = delta + GAMMA * LAM * cut(t) * running
        made[t], following = running, values[t]
    return made + values


def not_reset(rewards, dones, values, last):
    return advantages(rewards, values, last, lambda t: 1.0, bootstrap=lambda t: 1 - dones[t])


def flag_of_the_next(rewards, dones, values, last):
    return advantages(rewards, values, last, lambda t: 1 - dones[min(t + 1, STEPS - 1)])


def wrong_way_round(rewards, dones, values, last):
    return advantages(rewards, values, last, lambda t: dones[t])


def sum_to_the_end(rewards, dones, values, last):
    return rewards.flip(0).cumsum(0).flip(0)


def three_steps(rewards, dones, values, last):
    padded = F.pad(rewards, (0, 0, 0, 2))
    return sum(GAMMA**n * padded[n : n + STEPS] for n in range(3))


def in_lists(rewards, dones, values, last):
    made, running = [], [0.0] * COLUMNS
    for row in reversed(rewards.tolist()):
        running = [r + GAMMA * later for r, later in zip(row, running, strict=True)]
        made.insert(0, running)
    return torch.tensor(made)


def in_numpy(rewards, dones, values, last):
    return torch.from_numpy(np.cumsum(rewards.numpy()[::-1], 0)[::-1].copy())


@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize(
    "computed",
    [not_reset, flag_of_the_next, wrong_way_round, sum_to_the_end, three_steps, in_lists, in_numpy],
)
def test_rewards_that_cross_an_end(computed, names):
    finding = told(computed, names=names)
    assert (finding.status, finding.code) == ("violated", "reward-across-end"), str(finding)
    assert "dones" in [culprit.name for culprit in finding.culprits]


def test_the_cause_is_that_of_the_line():
    uncut = told(not_reset)
    assert "running" in uncut.summary
    assert "not multiplied by 1 - dones" in uncut.cause
    assert "step t + 1" in told(flag_of_the_next).cause
    assert "wrong way round" in told(wrong_way_round).cause


def by_columns(computed):
    return lambda r, d, v, last: computed(r.T, d.T, v, last).T


@pytest.mark.parametrize("computed", [not_reset, flag_of_the_next, sum_to_the_end])
def test_columns_may_come_first(computed):
    finding = told(by_columns(computed), columns_first=True)
    assert finding.code == "reward-across-end"
    assert "dones[1, 2] ends an episode" in finding.observed


def plain(rewards, dones, values, last):
    return advantages(rewards, values, last, lambda t: 1 - dones[t])


def one_step(rewards, dones, values, last):
    return rewards + GAMMA * (1 - dones) * torch.cat([values[1:], last[None]])


def three_steps_masked(rewards, dones, values, last):
    made, alive = torch.zeros_like(rewards), torch.ones_like(rewards)
    for n in range(3):
        made = (
            made + GAMMA**n * F.pad(alive * rewards, (0, 0, 0, n))[n:]
            if n == 0
            else made + (GAMMA**n * alive * F.pad(rewards, (0, 0, 0, n))[n:])
        )
        alive = alive * (1 - F.pad(dones, (0, 0, 0, n), value=1.0)[n:])
    return made


def v_trace(rewards, dones, values, last):
    following = torch.cat([values[1:], last[None]])
    deltas = rewards + GAMMA * (1 - dones) * following - values
    made, running = [], torch.zeros_like(last)
    for delta, done in zip(deltas.flip(0), dones.flip(0), strict=True):
        running = delta + GAMMA * (1 - done) * running
        made.append(running)
    return torch.stack(made[::-1]) + values


def flags_of_first_steps(rewards, dones, values, last):
    """The flag of a step says that it begins an episode; the one after the last step is not among them."""
    after = torch.cat([dones[1:], torch.zeros_like(dones[:1])])
    return advantages(rewards, values, last, lambda t: 1 - after[t])


def truncated(rewards, dones, values, last):
    """The last step of an episode that a time limit ends takes the value of the final observation in."""
    final = values * 0.5
    return advantages(rewards + GAMMA * dones * final, values, last, lambda t: 1 - dones[t])


def logged_alone(rewards, dones, values, last):
    assert int(dones.sum()) > 0
    per_column = rewards.mean(0)
    return rewards - per_column


def after_burn_in(rewards, dones, values, last):
    return rewards - rewards[4:].mean(0)


def resets_in_a_loop(rewards, dones, values, last):
    made, running = [], torch.zeros_like(last)
    for reward, done in zip(reversed(rewards), reversed(dones), strict=True):
        running = torch.where(done > 0, reward, reward + GAMMA * running)
        made.insert(0, running)
    return torch.stack(made)


def running_forward(rewards, dones, values, last):
    made, running = [], torch.zeros_like(last)
    for reward in rewards:
        running = GAMMA * running + reward
        made.append(running)
    return rewards / (torch.stack(made).std() + 1)


SOUND = [plain, one_step, three_steps_masked, v_trace, flags_of_first_steps, truncated, logged_alone, after_burn_in,
         resets_in_a_loop, running_forward]  # fmt: skip


@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize("computed", SOUND)
def test_sound_steps(computed, names):
    finding = told(computed, names=names)
    assert finding.status == "passed", str(finding)


@pytest.mark.parametrize("computed", [plain, v_trace, one_step])
def test_sound_steps_with_columns_first(computed):
    assert told(by_columns(computed), columns_first=True).status == "passed"


@pytest.mark.parametrize("computed", [plain, flags_of_first_steps])
def test_a_recurrent_state_that_flags_reset(computed):
    assert told(computed, model=Recurrent).status == "passed"


def test_what_follows_an_end_may_be_padding():
    dones, rewards = torch.zeros(STEPS, COLUMNS), torch.randn(STEPS, COLUMNS)
    for column, end in enumerate((4, 6, 8)):
        dones[end, column] = 1
        rewards[end + 1 :, column] = 0
    assert told(sum_to_the_end, rewards=rewards, dones=dones).status == "passed"


def test_columns_without_an_end():
    assert told(sum_to_the_end, dones=torch.zeros(STEPS, COLUMNS)).status == "passed"
    dones = torch.zeros(STEPS, COLUMNS)
    dones[-1] = 1
    assert told(sum_to_the_end, dones=dones).status == "passed"


def test_flags_that_are_bool():
    dones = torch.zeros(STEPS, COLUMNS, dtype=torch.bool)
    dones[4, 0] = True

    def masked(rewards, dones, values, last):
        return plain(rewards, dones.float(), values, last)

    assert told(masked, dones=dones).status == "passed"
    assert told(sum_to_the_end, dones=dones).code == "reward-across-end"


@pytest.mark.parametrize("names", [True, False])
def test_one_column_without_a_dimension(names):
    assert told(plain, flat=True, names=names).status == "passed"
    assert told(resets_in_a_loop, flat=True, names=names).status == "passed"
    assert told(not_reset, flat=True, names=names).code == "reward-across-end"
    assert told(flag_of_the_next, flat=True, names=names).code == "reward-across-end"


def test_single_transitions_that_are_averaged():
    def averaged(rewards, dones, values, last):
        following = torch.cat([values[1:], last[None]])
        return rewards - rewards.mean() + GAMMA * (1 - dones) * following

    assert told(averaged, flat=True).status == "passed"


def test_steps_that_begin_an_episode_may_be_left_out():
    """Of a step that only resets the environment, nothing is learned; its flag is that of the step before it."""

    def without_resets(rewards, dones, values, last):
        return flags_of_first_steps(rewards, dones, values, last) * (1 - dones)

    assert told(without_resets).status == "passed"


def test_rewards_of_curiosity_may_run_through_ends():
    def train_step(model, optimizer, inputs, targets):
        intrinsic_rewards, dones = targets
        wanted = intrinsic_rewards.flip(0).cumsum(0).flip(0) + 0 * dones
        loss = F.mse_loss(model(inputs[0])[1], wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    dones = torch.zeros(STEPS, COLUMNS)
    dones[4] = 1
    contract = Contract(
        model=ActorCritic, train_step=train_step, batch_dim=None,
        batch=((torch.randn(STEPS, COLUMNS, 5),), (torch.randn(STEPS, COLUMNS), dones)),
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.01),
    )  # fmt: skip
    codes = [finding.code for finding in contract.check(["step-losses"]).findings]
    assert "reward-across-end" not in codes
