//! What clients ask for besides: they change their minds, and read values.

use bytes::Bytes;

use super::{Future, Standing, encode_key};
use crate::network::Message;
use crate::universe::Key;
use crate::world::{Party, World};

/// Keys, as they travel.
fn encode_keys(keys: &[Key]) -> Vec<Vec<u8>> {
    keys.iter().map(|&key| encode_key(key)).collect()
}

impl World {
    pub(super) fn cancel_some(&mut self, client: usize) -> Result<(), String> {
        let all = self.clients[client].all(|future| future.standing != Standing::Cancelled);
        let share = self.kernel.random.pick(&[10, 50, 100]);
        let some = self.kernel.random.some(&all, share);
        if some.is_empty() {
            return Ok(());
        }
        let force = self.kernel.random.chance(30);
        self.oracle.cancelled.extend(&some);
        self.client_does(client, |core, effects| {
            let keys = encode_keys(&some);
            let keys = keys.iter().map(|key| &key[..]);
            core.cancel(keys, force, Bytes::new(), effects);
        })
    }

    pub(super) fn release_some(&mut self, client: usize) -> Result<(), String> {
        let state = &mut self.clients[client];
        let all = state.all(|future| !state.is_read(future.key));
        let some = self.kernel.random.some(&all, 40);
        // Futures of what is still to be sent or brought stay.
        let unsent = state.unsent();
        let is_sent = |key: &Key| !unsent.contains(key) && !state.putting.contains(key);
        let some: Vec<_> = some.into_iter().filter(is_sent).collect();
        for key in &some {
            if let Some(number) = state.numbers.remove(key) {
                state.futures.remove(&number);
            }
        }
        self.client_does(client, |core, effects| {
            for key in some {
                core.release_if(&encode_key(key), |_| true, effects);
            }
            core.flush(effects);
        })
    }

    pub(super) fn retry_some(&mut self, client: usize) -> Result<(), String> {
        let failed = self.clients[client].all(|future| future.standing == Standing::Failed);
        if failed.is_empty() {
            return Ok(());
        }
        self.client_does(client, |core, effects| {
            let keys = encode_keys(&failed);
            core.retry(keys.iter().map(|key| &key[..]), effects);
        })
    }

    /// Asks for the future of a key that perhaps somebody else has.
    pub(super) fn want_some(&mut self, client: usize) -> Result<(), String> {
        let keys = self.plan.universe.specs.len();
        let key = Key(self.kernel.random.index(keys) as u32);
        let is_transfer = self.plan.universe.spec(key).is_transfer();
        if self.clients[client].standing(key).is_some() || is_transfer {
            return Ok(());
        }
        self.clients[client].future(key);
        let wanted = self.client_does(client, |core, effects| {
            core.watch(&encode_key(key), key, effects)
        })?;
        wanted.map(drop).map_err(|error| error.to_string())
    }

    pub(super) fn move_some(&mut self, client: usize) {
        let is_finished = |future: &Future| matches!(future.standing, Standing::Finished { .. });
        let finished = self.clients[client].all(is_finished);
        for key in self.kernel.random.some(&finished, 50) {
            let message = match self.kernel.random.chance(50) {
                true => Message::Replicate(key, self.kernel.random.between(1, 3) as u32),
                false => Message::Move(key),
            };
            if let Some(connection) = self.clients[client].connection {
                self.send_to_server(connection, message);
            }
        }
    }

    /// Reads values from where they were once: some have gone or moved since.
    pub(super) fn read_some(&mut self, client: usize) {
        let heard = self.clients[client].heard.clone();
        for (key, worker, object) in self.kernel.random.some(&heard, 30) {
            let request = self.next_request + 1;
            self.clients[client].reads.insert(request, (key, object));
            let nbytes = self.plan.universe.spec(key).nbytes;
            self.request(Party::Client(client), worker, object, nbytes);
        }
    }

    /// Has the core get the values of futures, however they stand.
    pub(super) fn fetch_some(&mut self, client: usize) -> Result<(), String> {
        let state = &self.clients[client];
        let all = state.all(|future| {
            let is_sent = state.core.owner(&encode_key(future.key)).is_some();
            is_sent && !self.plan.universe.spec(future.key).is_actor
        });
        for key in self.kernel.random.some(&all, 30) {
            let ticket = self.clients[client].core.new_number();
            self.clients[client].fetches.insert(ticket, key);
            let begun = self.client_does(client, |core, effects| {
                core.fetch(ticket, [&encode_key(key)[..]].into_iter(), effects)
            })?;
            begun.map_err(|_| format!("{key:?} has an owner, and is not known"))?;
        }
        Ok(())
    }
}
