//! From which copy a partition is read, and when from another one.

use crate::reader::{Effects, Read, ReadError, Reader, ReaderEffect, Step};
use crate::{GroupId, ServerId, ToServer};

impl Reader {
    /// Asks a copy of the group that is to be read next.
    pub(super) fn fetch_next(&mut self, id: u64, effects: &mut Effects) {
        let Some(read) = self.reads.get(&id) else {
            return;
        };
        let plan = self.plans.get(&read.shuffle);
        let group = read.groups.last().and_then(|&group| plan?.group(group));
        let Some(group) = group else {
            let error = ReadError::Superseded(read.shuffle);
            return self.fail(id, error, effects);
        };
        // Readers of different partitions begin at different copies, as long as these have as much to do.
        let copies = &group.copies;
        let order =
            (0..copies.len()).map(|at| copies[(at + read.partition as usize) % copies.len()]);
        let order = order.filter(|copy| !read.failed.contains(copy));
        let under_way = |&server: &ServerId| match copies.len() {
            1 => 0,
            _ => self.under_way(server),
        };
        let Some(server) = order.min_by_key(under_way) else {
            return;
        };
        let copy = group.id.at(server);
        let Some(read) = self.reads.get_mut(&id) else {
            return;
        };
        read.step = Step::Fetching(copy);
        read.turns += u64::from(read.again_at.take().is_some());
        read.heard_at = self.now;
        effects.push(read.fetch(id, copy, self.tenant));
    }

    /// Reads that wait for this server.
    fn under_way(&self, server: ServerId) -> usize {
        let reads = self.reads.values();
        let waiting = reads.filter(|read| match read.step {
            Step::Fetching(group) => group.server == server,
            _ => false,
        });
        waiting.count()
    }

    /// Another copy of the group that is read, if there is one that has not failed.
    pub(super) fn other_copy(&self, read: &Read, copy: GroupId) -> Option<ServerId> {
        let plan = self.plans.get(&read.shuffle)?;
        let group = plan.group_of_copy(copy)?;
        let mut copies = group.copies.iter();
        let other = copies.find(|other| **other != copy.server && !read.failed.contains(other));
        other.copied()
    }

    /// Reads from another copy instead, if there is one. Whether there was.
    pub(super) fn switch(&mut self, id: u64, copy: GroupId, effects: &mut Effects) -> bool {
        let Some(read) = self.reads.get(&id) else {
            return false;
        };
        let is_there = self.other_copy(read, copy).is_some();
        if let Some(read) = self.reads.get_mut(&id)
            && is_there
        {
            read.turns += 1;
            read.failed.insert(copy.server);
            self.fetch_next(id, effects);
        }
        is_there
    }

    /// A server is silent: another copy is read, if there is one.
    pub(super) fn hedge(&mut self, id: u64, copy: GroupId, effects: &mut Effects) {
        let read = self.reads.get(&id);
        if read.is_some_and(|read| self.other_copy(read, copy).is_some()) {
            self.give_up(id, effects);
            self.switch(id, copy, effects);
        }
    }

    /// Lets the server know that its answer is not wanted any more, if one is under way.
    pub(super) fn give_up(&self, id: u64, effects: &mut Effects) {
        if let Some(read) = self.reads.get(&id)
            && let Step::Fetching(group) = read.step
        {
            let read = read.number(id);
            effects.push(ReaderEffect::Send {
                to: group.server,
                message: ToServer::Cancel { read },
            });
        }
    }

    /// A server is not silent.
    pub(super) fn heard(&mut self, server: ServerId) {
        for read in self.reads.values_mut() {
            if let Step::Fetching(group) = read.step
                && group.server == server
            {
                read.heard_at = self.now;
            }
        }
    }
}
