//! What a transfer has for a group, and at which copies of it that is.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use crate::config::Guard;
use crate::writer::peer::Item;
use crate::{Answer, AttemptId, Generation, Group, GroupId, Plan, ServerId, Tally, Transfer};

/// A transfer.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) again: bool,
    /// Its rows count even if others were committed.
    pub(super) replaces: bool,
    /// The generation in which it began; `None`: there is no plan yet.
    pub(super) began: Option<Generation>,
    /// By the group that has the rows, or is to get them.
    pub(super) parts: BTreeMap<GroupId, Part>,
}

/// What a transfer has for a group.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) step: Step,
    /// Whose batches are there.
    pub(super) holder: AttemptId,
    pub(super) tally: Tally,
    pub(super) batches: Vec<(Tally, u64)>,
    /// The copies that are to get them.
    pub(super) copies: Vec<Copy>,
    /// Who was asked whether rows of the map are there, by copy, and what they said.
    pub(super) asked: Vec<(GroupId, Option<Answer>)>,
    /// The group is complete: what it answers is final.
    pub(super) is_final: bool,
    /// Since when it waits for another plan.
    pub(super) waits: Option<Duration>,
    /// Its rows were gathered for another group, and found in this one.
    pub(super) is_moved: bool,
    /// The master was told that others were there.
    pub(super) differs: bool,
}

/// A copy that is to get the batches.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) id: GroupId,
    pub(super) unacked: BTreeSet<u32>,
    /// Since when the server has taken nothing, if something went wrong.
    pub(super) trouble: Option<Duration>,
    /// Since when the server has answered that it is busy. It works, and other servers would not be less
    /// busy: this does not end an epoch, whose rows would all be pushed again.
    pub(super) busy: Option<Duration>,
    /// How many batches came there damaged.
    pub(super) malformed: u32,
}

impl Copy {
    /// The server has taken something, or can be expected to.
    pub(super) fn is_fine(&mut self) {
        (self.trouble, self.busy) = (None, None);
    }

    /// Since when it has taken nothing, whatever the reason.
    fn stuck(&self) -> Option<Duration> {
        self.trouble.into_iter().chain(self.busy).min()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Gathering,
    Asking,
    Pushing,
    /// For another plan.
    Waiting,
    Held,
}

/// What came of the questions about a part.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Resolved {
    /// Not all have answered.
    Open,
    /// This group has the rows, from this attempt.
    Have(GroupId, AttemptId),
    /// None has.
    Missing,
    /// Others were there.
    Differs(GroupId),
    /// None has, and the group takes no more. Others with these partitions may have lost them.
    Sealed,
    /// A copy is not where it was.
    Moved,
}

impl Part {
    pub(super) fn new(transfer: Transfer, group: &Group) -> Self {
        let copies = group.copy_ids().map(|id| Copy {
            id,
            unacked: BTreeSet::new(),
            trouble: None,
            busy: None,
            malformed: 0,
        });
        Self {
            step: Step::Gathering,
            holder: transfer.attempt,
            tally: Tally::default(),
            batches: Vec::new(),
            copies: copies.collect(),
            asked: Vec::new(),
            is_final: false,
            waits: None,
            is_moved: false,
            differs: false,
        }
    }

    /// The rows may be at these copies already.
    pub(super) fn ask(&mut self, copies: Vec<GroupId>) {
        self.step = Step::Asking;
        self.asked = copies.into_iter().map(|copy| (copy, None)).collect();
    }

    pub(super) fn questions(&self, transfer: Transfer, part: GroupId) -> Vec<Item> {
        let open = self.asked.iter().filter(|(_, answer)| answer.is_none());
        open.map(|&(copy, _)| Item::ask(transfer, part, copy))
            .collect()
    }

    pub(super) fn awaits(&self, copy: GroupId) -> bool {
        self.asked.contains(&(copy, None))
    }

    pub(super) fn lacks(&self, id: GroupId, number: u32) -> bool {
        let mut copies = self.copies.iter();
        copies.any(|copy| copy.id == id && copy.unacked.contains(&number))
    }

    /// Whether it can go on elsewhere if a copy takes nothing.
    pub(super) fn may_poison(&self) -> bool {
        self.step == Step::Pushing && self.copies.len() > 1 && Guard::Poison.holds()
    }

    /// The server to name if it has waited for too long.
    pub(super) fn blamed(&self, group: GroupId) -> ServerId {
        let stuck = self.copies.iter().filter(|copy| copy.stuck().is_some());
        let first = stuck.min_by_key(|copy| copy.stuck());
        first.map_or(group.server, |copy| copy.id.server)
    }

    pub(super) fn copy_mut(&mut self, id: GroupId) -> Option<&mut Copy> {
        self.copies.iter_mut().find(|copy| copy.id == id)
    }

    /// Whether all copies have all batches.
    pub(super) fn is_pushed(&self) -> bool {
        self.copies.iter().all(|copy| copy.unacked.is_empty())
    }

    /// The batches that copies do not have.
    pub(super) fn pushes(&self, transfer: Transfer, part: GroupId) -> Vec<Item> {
        let copies = self.copies.iter().flat_map(|copy| {
            let numbers = copy.unacked.iter();
            numbers.map(move |&number| Item::push(transfer, part, copy.id, number))
        });
        copies.collect()
    }

    /// Since when it does not go on.
    pub(super) fn stuck(&self) -> Option<Duration> {
        let copies = self.copies.iter().filter_map(Copy::stuck);
        copies.chain(self.waits).min()
    }

    /// Since when something has been wrong with a copy that it can go on without.
    pub(super) fn trouble(&self) -> Option<Duration> {
        let copies = self.copies.iter().filter(|_| self.may_poison());
        copies.filter_map(|copy| copy.trouble).min()
    }

    /// What the answers of all copies of all groups come to.
    pub(super) fn resolve(&self, plan: &Plan) -> Resolved {
        let (mut is_open, mut is_moved) = (false, false);
        let mut found = BTreeMap::<GroupId, Vec<Option<AttemptId>>>::new();
        for (copy, answer) in &self.asked {
            let group = plan.group_of_copy(*copy).map_or(*copy, |group| group.id);
            let holder = match answer {
                None => {
                    is_open = true;
                    continue;
                }
                Some(Answer::Differs) => return Resolved::Differs(*copy),
                Some(Answer::Refused(_)) => {
                    is_moved = true;
                    continue;
                }
                Some(Answer::Won(holder)) => return Resolved::Have(group, *holder),
                Some(Answer::Have(holder)) => Some(*holder),
                Some(Answer::Missing) => None,
            };
            found.entry(group).or_default().push(holder);
        }
        if is_open {
            return Resolved::Open;
        }
        if is_moved {
            return Resolved::Moved;
        }
        for (group, holders) in found {
            let holder = holders.iter().flatten().next();
            let is_same = holders.iter().all(|other| other.as_ref() == holder);
            if let Some(&holder) = holder
                && (is_same || self.is_final)
            {
                return Resolved::Have(group, holder);
            }
        }
        match (self.is_final, self.asked.first()) {
            (true, Some(&(copy, _))) => {
                let mut copies = self.asked.iter();
                match copies.all(|(other, _)| other.epoch == copy.epoch) {
                    true => Resolved::Differs(copy),
                    false => Resolved::Sealed,
                }
            }
            _ => Resolved::Missing,
        }
    }
}

impl Running {
    /// The part that a copy is of: one that is to get its batches, or was asked.
    pub(super) fn part_of(&self, copy: GroupId) -> Option<GroupId> {
        let is_of = |part: &Part| {
            let mut asked = part.asked.iter();
            part.copies.iter().any(|other| other.id == copy)
                || asked.any(|(other, _)| *other == copy)
        };
        if self.parts.get(&copy).is_some_and(is_of) {
            return Some(copy);
        }
        let first = copy.at(ServerId::default());
        let of_epoch = self.parts.range(first..);
        let mut of_epoch = of_epoch.take_while(|(id, _)| id.epoch == copy.epoch);
        let found = of_epoch.find(|(_, part)| is_of(part));
        // One that was asked whether it has the rows of a later epoch.
        let found = found.or_else(|| {
            let mut asking = self.parts.iter().filter(|(_, part)| !part.asked.is_empty());
            asking.find(|(_, part)| is_of(part))
        });
        found.map(|(&id, _)| id)
    }

    /// Which copies are to be asked whether the rows for a group are there. `is_final`: it is complete, so that one
    /// of those with its partitions has them.
    pub(super) fn asks(&self, plan: &Plan, group: &Group, is_final: bool) -> Vec<GroupId> {
        // Nothing of the map can have been pushed before it began.
        let is_new = |id: GroupId| {
            let mut began = self.began.into_iter();
            began.all(|began| id.epoch >= began || began <= plan.opened)
        };
        match self.again || is_final {
            // Each group that the rows may be in.
            true => plan.chain(group).flat_map(Group::copy_ids).collect(),
            false if is_new(group.id) => Vec::new(),
            false => group.copy_ids().collect(),
        }
    }

    /// The groups, and the copies at which batches of this attempt may be.
    pub(super) fn pushed(&self) -> Vec<(GroupId, Vec<GroupId>)> {
        let parts = self.parts.iter();
        let copies = |part: &Part| {
            let is_begun = !matches!(part.step, Step::Gathering | Step::Asking);
            let is_there = is_begun && !part.batches.is_empty();
            let copies = part.copies.iter().filter(|_| is_there);
            copies.map(|copy| copy.id).collect()
        };
        parts.map(|(&group, part)| (group, copies(part))).collect()
    }
}
