//! What clients tell the scheduler, and what that means to the oracle.

use std::collections::BTreeMap;

use treadle_gateway::Event;
use treadle_messages::FromClient;
use treadle_types::{ClientId, Value};

use crate::client::decode_key;
use crate::network::Message;
use crate::server::{LEFT, Session, key_values, keywords};
use crate::universe::Key;
use crate::world::World;

impl Session {
    /// The client names keys.
    fn name<'a>(
        &mut self,
        first: u32,
        keys: impl IntoIterator<Item = &'a bytes::Bytes>,
    ) -> Result<Vec<Key>, String> {
        let keys: Option<Vec<Key>> = keys.into_iter().map(|key| decode_key(key)).collect();
        let keys = keys.ok_or("a key is none")?;
        self.keys.extend((first..).zip(keys.iter().copied()));
        Ok(keys)
    }

    /// The key of an id that the client has not released.
    pub(crate) fn key(&self, id: u32) -> Result<Key, String> {
        let key = self.keys.get(&id).copied();
        key.ok_or(format!("a client refers to {id}, which it has released"))
    }
}

impl World {
    pub(crate) fn told_by_client(
        &mut self,
        client: ClientId,
        message: Message,
    ) -> Result<(), String> {
        if !self.server.clients.contains_key(&client) {
            return Ok(());
        }
        match message {
            Message::Client(message) => {
                self.note_words(client, &message)?;
                self.server_event(Event::FromClient(client, *message))
            }
            Message::Replicate(key, copies) => {
                let among = match self.kernel.random.chance(50) {
                    true => Vec::new(),
                    false => self.kernel.random.some(&self.server.there(), 50),
                };
                let mut argument = BTreeMap::from([
                    ("keys", key_values([key])),
                    ("n", Value::Int(copies.into())),
                ]);
                if !among.is_empty() {
                    let among = among.iter().map(|&worker| self.server.address(worker));
                    argument.insert("workers", Value::List(among.collect()));
                }
                self.ask(client, "replicate", &keywords(argument))
            }
            Message::Move(key) => {
                let there = self.server.there();
                let task = self.server.tasks.get(&key);
                let holders = task.map(|&task| self.server.holders(task));
                let from = holders.and_then(|holders| holders.first().copied());
                let Some(from) = from.filter(|_| !there.is_empty()) else {
                    return Ok(());
                };
                let to = self.kernel.random.pick(&there);
                let [from, to] = [from, to].map(|worker| self.server.address(worker));
                let key = Value::Int(key.0.into());
                let moves = Value::List(vec![Value::Tuple(vec![key, from, to])]);
                self.ask(client, "move", &keywords([("moves", moves)]))
            }
            Message::Closed => self.server_event(Event::ClientGone(client, LEFT.into())),
            _ => Err("a client says what only workers say".into()),
        }
    }

    /// Keeps what the oracle has to know of what a client says.
    fn note_words(&mut self, client: ClientId, message: &FromClient) -> Result<(), String> {
        let Some(session) = self.server.clients.get_mut(&client) else {
            return Ok(());
        };
        // Keys about which the client may hear again.
        let mut asks = Vec::new();
        match message {
            FromClient::Submit(batch) => {
                session.name(batch.first, &batch.keys)?;
                for (row, &id) in batch.tasks.iter().enumerate() {
                    let inputs = batch.offsets[row] as usize..batch.offsets[row + 1] as usize;
                    let inputs = batch.inputs[inputs].iter().map(|&id| session.key(id));
                    let inputs: Vec<Key> = inputs.collect::<Result<_, _>>()?;
                    let key = session.key(id)?;
                    if inputs != self.plan.universe.spec(key).inputs {
                        return Err(format!("a batch says that {key:?} reads {inputs:?}"));
                    }
                }
                for &id in &batch.wanted {
                    asks.push(session.key(id)?);
                }
            }
            FromClient::Put { id, key, .. } => asks = session.name(*id, [key])?,
            FromClient::Want { first, keys } => asks = session.name(*first, keys)?,
            FromClient::Release(ids) => {
                for id in ids {
                    asks.push(session.key(*id)?);
                    session.keys.remove(id);
                }
            }
            FromClient::Retry(ids) => {
                for id in ids {
                    asks.push(session.key(*id)?);
                }
            }
            // A client cancels what it cannot bring, too.
            FromClient::Cancel { ids, .. } => {
                for id in ids {
                    self.oracle.cancelled.insert(session.key(*id)?);
                }
            }
            FromClient::Unkept(ids) => {
                let node = self.server.core.client(client);
                let kept = node.into_iter().flat_map(|node| node.kept());
                let dropped = kept.filter(|(_, id)| ids.contains(id));
                let keys = dropped.map(|(task, _)| self.server.keys[&task]);
                self.oracle.unkept.extend(keys);
            }
            FromClient::Define(_)
            | FromClient::Undefine(_)
            | FromClient::Register(_)
            | FromClient::Call(_) => {}
            other => return Err(format!("a client says {other:?}")),
        }
        for key in asks {
            if let Some(&task) = self.server.tasks.get(&key) {
                self.oracle.asks(client, task);
            }
        }
        Ok(())
    }
}
