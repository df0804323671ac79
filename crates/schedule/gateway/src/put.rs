//! Values that clients bring: where they go, and who keeps them.

use alloc::string::String;
use alloc::vec::Vec;

use bytes::Bytes;
use treadle_messages::ToClient;
use treadle_scheduler::{Event, State};
use treadle_types::{ClientId, WorkerId};

use crate::state::{Broken, Core};
use crate::submit::Meaning;

impl Core {
    /// A client has a value.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn put(
        &mut self,
        client: ClientId,
        id: u32,
        key: &Bytes,
        nbytes: u64,
        inline: Option<Bytes>,
        class: Bytes,
        (allowed, copies): (&[String], u32),
        kept: bool,
    ) -> Result<(), Broken> {
        let mut fresh = self.name(client, id, core::slice::from_ref(key))?;
        let Meaning::Task(task) = self.meaning(client, id)? else {
            return Ok(());
        };
        if let Some(node) = self.clients.get_mut(client) {
            node.locals.want(task, id);
            if kept {
                node.kept.insert(task, id);
            }
        }
        let is_inline = inline.is_some();
        let is_there = self
            .scheduler
            .task(task)
            .is_some_and(|view| view.state() == State::Memory);
        let put = self.feed(Event::Put {
            client,
            task,
            nbytes,
            inline,
            class,
            holders: Vec::new(),
            kept,
        });
        if let Err(error) = put {
            self.abandon(&mut fresh);
            return Err(error.into());
        }
        self.tell_awaiting(&[task])?;
        if is_inline {
            // Names for people alone: the value lives here.
            let workers = self.choose(allowed, copies, nbytes);
            match workers[..] {
                [] => {}
                [worker] => self.keys.set_maker(task, worker),
                _ => {
                    self.spread.insert(task, workers);
                }
            }
            return Ok(());
        }
        let workers = if is_there {
            Vec::new()
        } else {
            self.choose(allowed, copies, nbytes)
        };
        match workers.len() {
            0 | 1 => self.introduce_to_client(client, &workers),
            // It casts.
            _ => self.tell_members(client),
        }
        let workers = workers.iter().map(|worker| u64::from(worker.0)).collect();
        let Some(view) = self.scheduler.task(task) else {
            return Ok(());
        };
        let object = view.object().to_u64();
        self.tell_client(
            client,
            ToClient::Place {
                id,
                object,
                workers,
            },
        );
        Ok(())
    }

    /// A client does not keep values any more.
    pub(crate) fn unkept(&mut self, client: ClientId, ids: &[u32]) -> Result<(), Broken> {
        let Some(node) = self.clients.get_mut(client) else {
            return Ok(());
        };
        let mut tasks = Vec::new();
        node.kept.retain(|task, id| {
            let is_kept = !ids.contains(id);
            if !is_kept {
                tasks.push(*task);
            }
            is_kept
        });
        self.feed(Event::Unkept { client, tasks })?;
        Ok(())
    }

    /// Workers for a value that comes: of those that are allowed, the ones with the most free
    /// memory, in turn where that is the same.
    fn choose(&mut self, allowed: &[String], copies: u32, nbytes: u64) -> Vec<WorkerId> {
        self.turn = self.turn.wrapping_add(1);
        let turn = self.turn;
        let mut candidates: Vec<(u64, u32, WorkerId)> = Vec::new();
        let count = self.workers.len() as u32;
        for (place, node) in self.workers.iter().enumerate() {
            let is_allowed = allowed.is_empty()
                || allowed
                    .iter()
                    .any(|name| [&node.name, &node.address, &node.host].contains(&name));
            if !is_allowed || node.broken.is_some() || !self.is_running(node.id) {
                continue;
            }
            let view = self.scheduler.worker(node.id);
            let managed = view.map_or(0, |view| view.health().managed) + node.promised;
            // A sixteenth of the memory more or less does not matter.
            let share = (node.memory / 16).max(1);
            let used = if node.memory == 0 { 0 } else { managed / share };
            let distance = (place as u32).wrapping_sub(turn).rem_euclid(count.max(1));
            candidates.push((used, distance, node.id));
        }
        candidates.sort_unstable();
        let chosen: Vec<WorkerId> = candidates
            .into_iter()
            .take(copies.max(1) as usize)
            .map(|(.., worker)| worker)
            .collect();
        for worker in &chosen {
            if let Some(node) = self.workers.get_mut(*worker) {
                node.promised += nbytes;
            }
        }
        chosen
    }
}
