//! Values on their way between processes.

use treadle_types::{ObjectId, WorkerId};
use treadle_worker::Event;

use super::{Guard, PATIENCE, Stored};
use crate::universe::{Key, recipe};
use crate::world::{Copied, Item, Party, World};

impl World {
    /// Asks a worker for a value; the answer, or none, comes as the request of number
    /// `next_request`.
    pub(crate) fn request(&mut self, by: Party, from: WorkerId, object: ObjectId, nbytes: u64) {
        self.next_request += 1;
        let request = self.next_request;
        let latency = self.latency();
        if let Some(&machine) = self.places.get(&from) {
            let get = Item::Get {
                by,
                request,
                machine,
                worker: from,
                object,
            };
            self.kernel.schedule(latency, get);
        }
        let patience = PATIENCE + self.transfer(nbytes) + latency * 20;
        self.kernel
            .schedule(patience, Item::GetTimeout { by, request });
    }

    /// A worker is asked for a value.
    pub(crate) fn serve(
        &mut self,
        by: Party,
        request: u64,
        machine: usize,
        worker: WorkerId,
        object: ObjectId,
    ) -> Result<(), String> {
        let any_attempt = !Guard::PeerAttempt.holds();
        let mut copied = None;
        if let Some(pid) = self.current[machine]
            && let Some(process) = self.processes.get_mut(&pid)
            && process.id == Some(worker)
        {
            let mut found = process.store.get_key_value(&object);
            if any_attempt {
                let mut store = process.store.iter();
                found = store.find(|(id, _)| id.task == object.task);
            }
            match found {
                Some((_, stored)) if stored.is_actor => {
                    return Err(format!("{object:?} is an actor, and is asked for"));
                }
                Some((&object, stored)) if stored.is_readable => {
                    copied = Some(Copied {
                        object,
                        value: stored.value,
                        nbytes: stored.nbytes,
                        immovable: stored.immovable,
                    });
                }
                Some(_) => {
                    self.summary.gone += 1;
                    self.process_event(pid, Event::Gone(object))?;
                }
                None => {}
            }
        }
        let nbytes = copied.map_or(0, |copied| copied.nbytes);
        let delay = match by {
            Party::Client(client) if self.clients[client].has_asked(request) => {
                self.with_other_stream(|world| world.transfer(nbytes))
            }
            _ => self.transfer(nbytes),
        };
        let got = Item::Got {
            by,
            request,
            copied,
        };
        self.kernel.schedule(delay, got);
        Ok(())
    }

    pub(crate) fn got(
        &mut self,
        by: Party,
        request: u64,
        copied: Option<Copied>,
    ) -> Result<(), String> {
        let pid = match by {
            Party::Process(pid) => pid,
            Party::Client(client) => return self.gathered(client, request, copied),
        };
        // Somebody else may take the room a moment before.
        let is_crowded = self.with_other_stream(|world| world.kernel.random.chance(1));
        let Some(process) = self.processes.get_mut(&pid) else {
            return Ok(());
        };
        // One that was given up already.
        let Some((object, from)) = process.requests.remove(&request) else {
            return Ok(());
        };
        if copied.is_some() && (is_crowded || process.is_out_of_memory) {
            self.summary.no_room += 1;
            self.summary.unfetched += 1;
            return self.process_event(pid, Event::NoRoom { object, from });
        }
        match copied {
            Some(copied) if copied.object != object => {
                return Err(format!(
                    "process {pid} asks for {object:?}, and gets {copied:?}"
                ));
            }
            Some(Copied {
                immovable: Some(key),
                ..
            }) => {
                self.summary.immovable += 1;
                let immovable = Event::Immovable {
                    object,
                    from,
                    error: recipe(key),
                };
                return self.process_event(pid, immovable);
            }
            Some(Copied { value, nbytes, .. }) => {
                self.summary.fetched += 1;
                let stored = Stored {
                    value,
                    nbytes,
                    is_readable: true,
                    is_actor: false,
                    immovable: None,
                };
                process.store.insert(object, stored);
            }
            None => self.summary.unfetched += 1,
        }
        let nbytes = copied.map(|copied| copied.nbytes);
        let fetched = Event::Fetched {
            object,
            from,
            nbytes,
        };
        self.process_event(pid, fetched)
    }

    /// A client brings a value.
    pub(crate) fn bring(
        &mut self,
        (client, name): (usize, u32),
        machine: usize,
        worker: WorkerId,
        object: ObjectId,
        key: Key,
    ) -> Result<(), String> {
        let Some(pid) = self.current[machine] else {
            return Ok(());
        };
        let spec = self.plan.universe.spec(key);
        let nbytes = spec.nbytes;
        let stored = Stored {
            value: spec.value,
            nbytes,
            is_readable: true,
            is_actor: false,
            immovable: None,
        };
        match self.processes.get_mut(&pid) {
            Some(process) if process.id == Some(worker) => {
                process.store.insert(object, stored);
                let taken = Item::Brought {
                    client,
                    name,
                    worker: Some(worker),
                };
                self.kernel.schedule(self.least_latency(), taken);
                self.process_event(pid, Event::Put { object, nbytes })
            }
            _ => Ok(()),
        }
    }
}
