//! Comparing what is here with what the receipts say.

use alloc::vec::Vec;

use crate::config::Guard;
use crate::server::group::GroupState;
use crate::server::upload::Upload;
use crate::server::{Effects, Server};
use crate::{AttemptId, Expected, GroupId, Seal, ShuffleId, Tally, ToMaster, Verdict};

impl Server {
    /// The master asks for a comparison. What did not win goes.
    pub(super) fn seal(&mut self, seal: Seal, effects: &mut Effects) {
        let Ok(group) = self.resolve(seal.shuffle, seal.group) else {
            // A newer plan is on its way to the master, or from it.
            return;
        };
        let Some(held) = self.shuffles.get_mut(&seal.shuffle) else {
            return;
        };
        if held.plan.generation != seal.generation {
            return;
        }
        let Some(state) = held.groups.get_mut(&group) else {
            return;
        };
        if let Upload::Adopting(adopting) = &mut state.upload {
            adopting.seal = Some(seal);
            return;
        }
        let verdict = state.compare(&seal.expected, Guard::Receipts.holds());
        let sealed = ToMaster::Sealed {
            shuffle: seal.shuffle,
            group: seal.group,
            round: seal.round,
            verdict,
        };
        self.report(seal.shuffle, sealed, effects);
        if verdict != Verdict::Complete {
            return;
        }
        self.complete(seal.shuffle, group, seal.expected, effects);
    }

    /// A group has what won. The rest goes.
    pub(super) fn complete(
        &mut self,
        shuffle: ShuffleId,
        group: GroupId,
        expected: Expected,
        effects: &mut Effects,
    ) {
        let held = self.shuffles.get_mut(&shuffle);
        let Some(state) = held.and_then(|held| held.groups.get_mut(&group)) else {
            return;
        };
        state.sealed = Some(expected);
        state.index = None;
        self.want_upload(shuffle, group);
        self.sealed_fill(shuffle, group);
        if !Guard::Attempt.holds() {
            return;
        }
        let held = self.shuffles.get_mut(&shuffle);
        let Some(state) = held.and_then(|held| held.groups.get_mut(&group)) else {
            return;
        };
        let losers: Vec<(u32, AttemptId)> = state.attempts.keys().copied().collect();
        let mut dropped = Vec::new();
        for (map, attempt) in losers {
            if state.winner(map) != Some(attempt) {
                dropped.extend(state.lose_attempt(map, attempt));
            }
        }
        let rest = state.rest();
        self.drop_batches(shuffle, group, dropped, effects);
        if !rest.is_empty() {
            self.memory.rests.push_back((shuffle, group, rest));
        }
        self.unpark(effects);
    }
}

impl GroupState {
    pub(super) fn compare(&self, expected: &Expected, compares: bool) -> Verdict {
        if !compares {
            return Verdict::Complete;
        }
        if let Some(sealed) = &self.sealed {
            return match sealed == expected {
                true => Verdict::Complete,
                false => Verdict::Differs,
            };
        }
        let attempts = expected.winners.iter();
        let attempts = attempts.map(|winner| self.attempts.get(&winner));
        let found: Tally = attempts.flatten().map(|attempt| attempt.tally).sum();
        if found == expected.tally && expected.winners.iter().is_sorted_by(|a, b| a.0 < b.0) {
            return Verdict::Complete;
        }
        let mut winners = expected.winners.iter();
        let missing = winners.find(|winner| !self.attempts.contains_key(winner));
        Verdict::Short {
            found,
            missing: missing.map(|(map, _)| map),
        }
    }
}
