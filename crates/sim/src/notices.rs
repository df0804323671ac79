//! What the scheduler tells clients: whether it is true.

use bytes::Bytes;
use treadle_messages::{Failed, FailedKind, Standing};
use treadle_scheduler::{Notice, State};
use treadle_types::{ClientId, Failure, TaskId};

use crate::universe::{Key, Raises, key_of, recipe};
use crate::world::World;

impl World {
    pub(crate) fn notify(
        &mut self,
        client: ClientId,
        task: TaskId,
        notice: Notice,
    ) -> Result<(), String> {
        let Some(session) = self.server.clients.get(&client) else {
            return Err(format!("{client:?} has left, and hears about {task:?}"));
        };
        let Some(&future) = session.futures.get(&task) else {
            return Err(format!(
                "{client:?} hears about {task:?}, which it does not want"
            ));
        };
        let key = self.server.keys[&task];
        let lineage = &self.plan.universe.spec(key).lineage;
        let standing = match notice {
            Notice::Finished {
                nbytes,
                inline,
                class,
                holder,
            } => {
                self.oracle.finished(client, task, holder)?;
                let raises = |key: &Key| self.plan.universe.spec(*key).raises == Raises::Always;
                if lineage.iter().any(raises) {
                    return Err(format!("{key:?} has a value, and always raises"));
                }
                Standing::Finished {
                    nbytes,
                    inline,
                    class,
                    holder,
                    object: self.server.object(task).to_u64(),
                }
            }
            Notice::Failed(failure) => {
                self.oracle.asks(client, task);
                self.check_failure(key, &failure)?;
                Standing::Failed(Failed {
                    key: recipe(key),
                    kind: FailedKind::Raised(Bytes::new()),
                })
            }
            Notice::Cancelled => {
                self.oracle.asks(client, task);
                let is_meant =
                    self.oracle.has_restarted || !self.oracle.cancelled.is_disjoint(lineage);
                if !is_meant {
                    return Err(format!("nobody has cancelled {key:?}, and it is"));
                }
                // The scheduler has forgotten that the client wants it.
                if let Some(session) = self.server.clients.get_mut(&client) {
                    session.futures.remove(&task);
                    session.tasks.remove(&future);
                }
                Standing::Cancelled(Bytes::new())
            }
            Notice::Pending => {
                self.oracle.asks(client, task);
                Standing::Pending
            }
        };
        self.notice(client, future, standing);
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
        if self.server.core.task(task)?.state() != State::Failed {
            return None;
        }
        let mut sessions = self.server.clients.iter();
        let keeper = sessions.find(|(_, session)| session.kept.contains_key(&task));
        keeper.map(|(&client, _)| client)
    }

    /// Whether there is a reason for a failure.
    fn check_failure(&self, key: Key, failure: &Failure) -> Result<(), String> {
        let spec = self.plan.universe.spec(key);
        let culprit = match failure {
            Failure::Raised { error, .. } => key_of(error),
            _ => self.server.keys.get(&failure.culprit()).copied(),
        };
        // The one at fault may be forgotten by now.
        if let Some(culprit) = culprit
            && !spec.lineage.contains(&culprit)
        {
            return Err(format!(
                "{key:?} fails for {culprit:?}, which it does not read"
            ));
        }
        let is_founded = match failure {
            Failure::Raised { .. } => culprit.is_some_and(|culprit| {
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
            Failure::WorkersLost { losses, .. } => {
                losses.len() as u32 > self.plan.config.allowed_losses
                    && losses.len() <= self.oracle.losses
            }
            Failure::DataLost { .. } => {
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
            Failure::Unavailable { .. } => self.summary.unfetched > 0,
        };
        match is_founded {
            true => Ok(()),
            false => Err(format!("{key:?} fails without a reason: {failure:?}")),
        }
    }
}
