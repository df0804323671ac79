//! Values on their way from workers to clients, and from clients to workers.

use treadle_broadcast::Runs;
use treadle_client::{Event, Fetched, Load};
use treadle_types::{ObjectId, WorkerId};

use super::{Bringing, Standing, encode_key};
use crate::process::PATIENCE;
use crate::universe::{decode, recipe};
use crate::world::{Copied, Item, World};

impl World {
    /// The core says what became of a fetch.
    pub(super) fn fetched(
        &mut self,
        client: usize,
        ticket: u64,
        outcome: Fetched<u64>,
    ) -> Result<(), String> {
        let state = &mut self.clients[client];
        let Some(key) = state.fetches.remove(&ticket) else {
            return Err(format!("client {client} is told twice of fetch {ticket}"));
        };
        self.summary.gathered += 1;
        let spec = self.plan.universe.spec(key);
        let is_dropped =
            self.oracle.has_restarted || !self.oracle.cancelled.is_disjoint(&spec.lineage);
        let was_current = |value| self.oracle.versions.was_current(key, value);
        let is_right = match &outcome {
            Fetched::Inline(value) => decode(value).is_some_and(was_current),
            Fetched::Frames(value) => was_current(*value),
            Fetched::Unserialisable { .. } => spec.is_immovable,
            Fetched::Failed => {
                // One that was released meanwhile is told of nothing.
                let owner = state.core.owner(&encode_key(key));
                is_dropped || owner.is_none() || state.standing(key) == Some(Standing::Failed)
            }
            Fetched::Unknown => is_dropped,
            Fetched::Unreachable(_) => false,
        };
        match is_right {
            true => Ok(()),
            false => Err(format!(
                "client {client} fetches {key:?}, and gets {outcome:?}"
            )),
        }
    }

    /// A value has come, or could not be read.
    pub(crate) fn gathered(
        &mut self,
        client: usize,
        request: u64,
        copied: Option<Copied>,
    ) -> Result<(), String> {
        let state = &mut self.clients[client];
        let asked = state.reads.remove(&request).map(|(_, object)| object);
        let get = state.gets.remove(&request);
        let Some(object) = asked.or(get.map(|(_, _, object)| object)) else {
            return Ok(());
        };
        if let Some(copied) = copied
            && copied.object != object
        {
            return Err(format!(
                "client {client} asks for {object:?}, and gets {copied:?}"
            ));
        }
        let Some((request, ..)) = get.filter(|_| !state.has_left) else {
            return Ok(());
        };
        let event = match copied {
            Some(Copied {
                immovable: Some(key),
                ..
            }) => {
                let error = recipe(key);
                Event::Unserialisable { request, error }
            }
            Some(copied) => {
                let value = copied.value;
                Event::Got { request, value }
            }
            None => Event::Missed {
                request,
                reason: "it does not answer".into(),
            },
        };
        self.client_event(client, event)
    }

    /// The scheduler says that a worker is gone: so are the connections to it.
    pub(super) fn client_loses(&mut self, client: usize, worker: WorkerId) -> Result<(), String> {
        let state = &mut self.clients[client];
        let names: Vec<_> = state.bringing.keys().copied().collect();
        let gets = state.gets.values().filter(|get| get.1 == worker);
        let lost: Vec<u64> = gets.map(|get| get.0).collect();
        state.gets.retain(|_, get| get.1 != worker);
        for request in lost {
            let reason = "the worker is gone".into();
            self.client_event(client, Event::Missed { request, reason })?;
        }
        for name in names {
            self.brought(client, name, Some(worker), false)?;
        }
        Ok(())
    }

    /// Brings a value to the workers that the scheduler has named.
    pub(super) fn bring_to(&mut self, client: usize, workers: &Runs, load: &Load, spreads: bool) {
        let object = ObjectId::from_u64(load.object);
        let Some((key, _)) = self.server.find(object.task) else {
            return;
        };
        let travels = self.transfer(self.plan.universe.spec(key).nbytes);
        let workers = workers.iter().map(|worker| WorkerId(worker as u32));
        let bringing = Bringing {
            spreads,
            waiting: workers.collect(),
            taken: Runs::new(),
        };
        for &worker in &bringing.waiting {
            let bring = Item::Bring {
                client,
                name: load.name,
                machine: self.places[&worker],
                worker,
                object,
                key,
            };
            self.kernel.schedule(travels, bring);
        }
        self.clients[client].bringing.insert(load.name, bringing);
        let timeout = Item::Brought {
            client,
            name: load.name,
            worker: None,
        };
        self.kernel.schedule(travels * 4 + PATIENCE, timeout);
    }

    /// A worker has taken what was brought to it, or will not; nothing: none does any more.
    pub(crate) fn brought(
        &mut self,
        client: usize,
        name: u32,
        worker: Option<WorkerId>,
        takes: bool,
    ) -> Result<(), String> {
        let state = &mut self.clients[client];
        let Some(bringing) = state.bringing.get_mut(&name) else {
            return Ok(());
        };
        match worker {
            Some(worker) if bringing.waiting.remove(&worker) => {
                if takes {
                    bringing.taken.insert(worker.0.into());
                }
            }
            Some(_) => return Ok(()),
            None => bringing.waiting.clear(),
        }
        if !bringing.waiting.is_empty() {
            return Ok(());
        }
        let (spreads, taken) = (bringing.spreads, std::mem::take(&mut bringing.taken));
        state.bringing.remove(&name);
        if state.has_left {
            return Ok(());
        }
        let reason = "it does not answer".to_owned();
        let event = match spreads {
            true => Event::Spread {
                name,
                taken,
                reason,
            },
            false => Event::Brought {
                name,
                outcome: match taken.is_empty() {
                    true => Err(reason),
                    false => Ok(()),
                },
            },
        };
        self.client_event(client, event)
    }
}
