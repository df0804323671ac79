//! What the scheduler tells clients: whether it is true.

use treadle_messages::{Failed, FailedKind, Standing};
use treadle_scheduler::State;
use treadle_types::{ClientId, ObjectId};

use crate::client::{decode_key, encode_key};
use crate::universe::{Key, Raises, key_of};
use crate::world::World;

impl World {
    /// Called before a client is told how a key stands.
    pub(crate) fn verify_notice(
        &mut self,
        client: ClientId,
        id: u32,
        standing: &Standing,
    ) -> Result<(), String> {
        let Some(session) = self.server.clients.get(&client) else {
            return Err(format!("{client:?} has left, and hears {standing:?}"));
        };
        let key = session.key(id)?;
        let task = self.server.core.task(&encode_key(key));
        let lineage = &self.plan.universe.spec(key).lineage;
        let mut asks = task;
        match standing {
            Standing::Finished {
                object,
                holder,
                inline,
                ..
            } => {
                asks = None;
                let object = ObjectId::from_u64(*object);
                if task != Some(object.task) {
                    return Err(format!(
                        "{client:?} hears of {object:?} as {key:?}, which is {task:?}"
                    ));
                }
                self.oracle.finished(client, object.task, *holder)?;
                if let Some(value) = inline {
                    self.oracle.must_be_current(Some(&key), value)?;
                }
                let raises = |key: &Key| self.plan.universe.spec(*key).raises == Raises::Always;
                if lineage.iter().any(raises) {
                    return Err(format!("{key:?} has a value, and always raises"));
                }
            }
            Standing::Failed(failed) => self.check_failure(key, failed)?,
            Standing::Cancelled(_) => {
                let is_meant =
                    self.oracle.has_restarted || !self.oracle.cancelled.is_disjoint(lineage);
                if !is_meant {
                    return Err(format!("nobody has cancelled {key:?}, and it is"));
                }
            }
            Standing::Pending => {}
            // What reads it is cancelled.
            Standing::Unknown => {
                self.oracle.cancelled.insert(key);
            }
        }
        if let Some(task) = asks {
            self.oracle.asks(client, task);
        }
        Ok(())
    }

    /// Whether a task, or one that it depends on, may have to run where an input cannot be sent.
    fn is_out_of_place(&self, key: Key) -> bool {
        let spec = |key: Key| self.plan.universe.spec(key);
        let fixed = |key: &Key| spec(*key).is_immovable || spec(*key).is_actor;
        spec(key).lineage.iter().any(|&key| {
            let inputs = &spec(key).inputs;
            let count = inputs.iter().filter(|input| fixed(input)).count();
            count > 1 || (count == 1 && spec(key).constraint > 0)
        })
    }

    /// A client that keeps a value that has failed.
    fn keeper_of_failed(&self, key: Key) -> Option<ClientId> {
        let &task = self.server.tasks.get(&key)?;
        if self.server.scheduler().task(task)?.state() != State::Failed {
            return None;
        }
        let mut clients = self.server.core.clients();
        let keeper = clients.find(|node| node.kept().any(|(kept, _)| kept == task));
        keeper.map(|node| node.id)
    }

    /// Whether there is a reason for a failure.
    fn check_failure(&self, key: Key, failed: &Failed) -> Result<(), String> {
        let spec = self.plan.universe.spec(key);
        let culprit = match &failed.kind {
            FailedKind::Raised(error) => key_of(error),
            FailedKind::Unavailable(_) => None,
            _ => decode_key(&failed.key),
        };
        // The one at fault may be forgotten by now.
        if let Some(culprit) = culprit
            && !spec.lineage.contains(&culprit)
        {
            return Err(format!(
                "{key:?} fails for {culprit:?}, which it does not read"
            ));
        }
        let is_founded = match &failed.kind {
            FailedKind::Raised(_) => culprit.is_some_and(|culprit| {
                let culprit = self.plan.universe.spec(culprit);
                if culprit.is_immovable && self.is_out_of_place(key) {
                    return true;
                }
                match culprit.raises {
                    Raises::Never => false,
                    Raises::Times(times) => times > culprit.retries,
                    Raises::Always => true,
                }
            }),
            FailedKind::WorkersLost(losses) => {
                losses.len() as u32 > self.plan.config.allowed_losses
                    && losses.len() <= self.oracle.losses
            }
            FailedKind::DataLost(_) | FailedKind::ActorLost(_) => {
                let is_unique = |culprit: Key| {
                    let culprit = self.plan.universe.spec(culprit);
                    culprit.is_data || culprit.is_actor
                };
                let is_lost =
                    self.oracle.losses > 0 || self.summary.gone > 0 || self.oracle.has_invalidated;
                if let Some(keeper) = culprit.and_then(|culprit| self.keeper_of_failed(culprit)) {
                    return Err(format!("{culprit:?} is lost, and {keeper:?} keeps it"));
                }
                let excused = |key: &Key| {
                    self.oracle.cancelled.contains(key) || self.oracle.unkept.contains(key)
                };
                let is_not_brought = culprit.as_ref().is_none_or(excused)
                    || self.clients.iter().any(|client| client.has_left);
                culprit.is_none_or(is_unique) && (is_lost || is_not_brought)
            }
            FailedKind::Unavailable(_) => self.summary.unfetched > 0,
        };
        match is_founded {
            true => Ok(()),
            false => Err(format!("{key:?} fails without a reason: {failed:?}")),
        }
    }
}
