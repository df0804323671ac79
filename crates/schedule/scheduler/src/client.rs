//! Clients: what they want, and the submissions that they have begun.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use treadle_types::{ClientId, TaskId};

/// The number of a submission of which more batches are to come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct OpenId(pub(crate) u32);

impl OpenId {
    /// None.
    pub(crate) const NONE: Self = Self(u32::MAX);
}

/// A submission of which more batches are to come.
#[derive(Debug, Default)]
pub(crate) struct Open {
    /// Its place among all submissions.
    pub(crate) order: u32,
    /// Tasks that were told to wait for readers of this submission, in `Task::unsent`. Some have
    /// heard of all of theirs since.
    pub(crate) tasks: Vec<TaskId>,
    /// The same for tasks that wait for readers of another submission already: how many are to come.
    pub(crate) shared: BTreeMap<TaskId, u32>,
}

/// A set of tasks, one bit each.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskSet {
    words: Vec<u64>,
}

impl TaskSet {
    /// Adds a task; whether it was new.
    #[inline]
    pub(crate) fn insert(&mut self, task: TaskId) -> bool {
        let (word, bit) = (task.index() / 64, 1 << (task.index() % 64));
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        let was = self.words[word] & bit;
        self.words[word] |= bit;
        was == 0
    }

    /// Removes a task; whether it was there.
    #[inline]
    pub(crate) fn remove(&mut self, task: TaskId) -> bool {
        let (word, bit) = (task.index() / 64, 1 << (task.index() % 64));
        match self.words.get_mut(word) {
            Some(word) if *word & bit != 0 => {
                *word &= !bit;
                true
            }
            _ => false,
        }
    }

    /// Whether a task is in the set.
    #[inline]
    pub(crate) fn contains(&self, task: TaskId) -> bool {
        let word = self.words.get(task.index() / 64);
        word.is_some_and(|word| word >> (task.index() % 64) & 1 == 1)
    }

    /// The tasks, by id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.words.iter().enumerate().flat_map(|(index, &word)| {
            let mut left = word;
            core::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.wrapping_sub(1);
                (bit < 64).then(|| TaskId((index * 64) as u32 + bit))
            })
        })
    }
}

/// One connection of a client.
#[derive(Debug, Default)]
pub(crate) struct Client {
    pub(crate) wants: TaskSet,
    /// By the client's number of the submission.
    pub(crate) submissions: BTreeMap<u32, OpenId>,
}

/// All clients, and all submissions of which more is to come.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    clients: BTreeMap<ClientId, Client>,
    open: Vec<Option<Open>>,
    vacant: Vec<OpenId>,
    /// Counts submissions, for priorities.
    submissions: u32,
}

impl Clients {
    pub(crate) fn get(&self, id: ClientId) -> Option<&Client> {
        self.clients.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: ClientId) -> Option<&mut Client> {
        self.clients.get_mut(&id)
    }

    /// Adds a client; whether the id was free.
    pub(crate) fn join(&mut self, id: ClientId) -> bool {
        let free = !self.clients.contains_key(&id);
        if free {
            self.clients.insert(id, Client::default());
        }
        free
    }

    pub(crate) fn leave(&mut self, id: ClientId) -> Option<Client> {
        self.clients.remove(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ClientId, &Client)> {
        self.clients.iter().map(|(&id, client)| (id, client))
    }

    /// The place of a batch among all submissions, and the record of the submission unless the
    /// batch is all of it.
    pub(crate) fn batch(&mut self, id: ClientId, number: u32, last: bool) -> (u32, OpenId) {
        let Some(client) = self.clients.get_mut(&id) else {
            return (0, OpenId::NONE);
        };
        if let Some(&open) = client.submissions.get(&number) {
            let order = self.open[open.0 as usize].as_ref().map_or(0, |o| o.order);
            return (order, open);
        }
        let order = self.submissions;
        self.submissions = order.wrapping_add(1);
        if last {
            return (order, OpenId::NONE);
        }
        let open = self.vacant.pop().unwrap_or_else(|| {
            self.open.push(None);
            OpenId(self.open.len() as u32 - 1)
        });
        self.open[open.0 as usize] = Some(Open {
            order,
            ..Open::default()
        });
        client.submissions.insert(number, open);
        (order, open)
    }

    pub(crate) fn open(&self, id: OpenId) -> Option<&Open> {
        self.open.get(id.0 as usize)?.as_ref()
    }

    pub(crate) fn open_mut(&mut self, id: OpenId) -> Option<&mut Open> {
        self.open.get_mut(id.0 as usize)?.as_mut()
    }

    /// No more batches of a submission come.
    pub(crate) fn close(&mut self, id: OpenId) -> Option<Open> {
        let open = self.open.get_mut(id.0 as usize)?.take();
        if open.is_some() {
            self.vacant.push(id);
        }
        open
    }

    /// The submissions of which more is to come.
    pub(crate) fn submissions(&self) -> impl Iterator<Item = (OpenId, &Open)> {
        let ids = (0..).map(OpenId);
        ids.zip(&self.open)
            .filter_map(|(id, open)| Some((id, open.as_ref()?)))
    }
}
