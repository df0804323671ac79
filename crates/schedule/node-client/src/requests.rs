//! What the application wants: of keys, of submissions, of values, of other nodes.

use bytes::Bytes;
#[cfg(doc)]
use treadle_client::Core;
use treadle_client::{Content, Destination, Effects, Exhausted, Input, IsIntact, Submission};
use treadle_messages::{Answer, Call, Definition, FromClient};
use treadle_net::Wait;
use treadle_reactor::thread::lock;
use treadle_schedule_wire::{NodeError, answer_fits, call_fits, fits};

use super::error::ClientError;
use super::{Client, State, WAITING};

impl<T> Client<T> {
    /// A number for a call or a fetch, used once.
    pub fn new_number(&self) -> u64 {
        lock(&self.core).new_number()
    }

    /// As [`Core::watch`].
    ///
    /// # Errors
    /// When the connection is over.
    pub fn watch(&self, key: &[u8], owner: T) -> Result<Option<T>, ClientError> {
        self.check()?;
        Ok(self.act(|core, effects| core.watch(key, owner, effects))?)
    }

    /// As [`Client::release_if`], whatever the application keeps.
    pub fn release(&self, key: &[u8]) -> Option<T> {
        self.release_if(key, |_| true)
    }

    /// As [`Core::release_if`]. The scheduler is told with the next message, or by
    /// [`Client::flush_now`]. `is_it` is called under a lock, and must not call out.
    pub fn release_if(&self, key: &[u8], is_it: impl FnOnce(&T) -> bool) -> Option<T> {
        self.act(|core, effects| core.release_if(key, is_it, effects))
    }

    /// As [`Core::owner`]. `read` is called under a lock, and must not call out.
    pub fn owner<R>(&self, key: &[u8], read: impl FnOnce(&T) -> R) -> Option<R> {
        lock(&self.core).owner(key).map(read)
    }

    /// As [`Core::key_count`].
    pub fn key_count(&self) -> usize {
        lock(&self.core).key_count()
    }

    /// As [`Core::kept`].
    pub fn kept(&self) -> (usize, u64) {
        lock(&self.core).kept()
    }

    /// As [`Core::value`].
    pub fn value(&self, key: &[u8]) -> Option<Bytes> {
        lock(&self.core).value(key)
    }

    /// As [`Core::losses`].
    pub fn losses(&self) -> u32 {
        lock(&self.core).losses()
    }

    /// As [`Core::is_lost_since`].
    pub fn is_lost_since(&self, key: &[u8], losses: u32) -> bool {
        lock(&self.core).is_lost_since(key, losses)
    }

    /// As [`Core::cancel`].
    ///
    /// # Errors
    /// When the connection is over, or the reason is too long.
    pub fn cancel<'a>(
        &self,
        keys: impl Iterator<Item = &'a [u8]>,
        force: bool,
        reason: Bytes,
    ) -> Result<(), ClientError> {
        self.check()?;
        let what = || "the reason of a cancellation".to_owned();
        fits(reason.len(), what).map_err(NodeError::from)?;
        self.act(|core, effects| core.cancel(keys, force, reason, effects));
        Ok(())
    }

    /// As [`Core::retry`].
    ///
    /// # Errors
    /// When the connection is over.
    pub fn retry<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) -> Result<(), ClientError> {
        self.check()?;
        self.act(|core, effects| core.retry(keys, effects));
        Ok(())
    }

    /// No batch that is sent from now on uses these definitions.
    pub fn undefine(&self, numbers: Vec<u32>) {
        self.post(FromClient::Undefine(numbers));
    }

    /// Asks another node; the answer has the question's number, a [new one](Client::new_number).
    ///
    /// # Errors
    /// When the connection is over.
    pub fn call(&self, call: Call) -> Result<(), ClientError> {
        self.check()?;
        call_fits(&call)?;
        self.post(FromClient::Call(call));
        Ok(())
    }

    /// Answers a question.
    ///
    /// # Errors
    /// When the connection is over.
    pub fn answer(&self, answer: Answer) -> Result<(), ClientError> {
        self.check()?;
        answer_fits(&answer)?;
        self.post(FromClient::Answer(answer));
        Ok(())
    }

    /// As [`Core::put`].
    ///
    /// # Errors
    /// When the connection is over.
    pub fn put(
        &self,
        key: &[u8],
        owner: T,
        content: Content,
        destination: &Destination,
    ) -> Result<Option<T>, ClientError> {
        self.check()?;
        Ok(self.act(|core, effects| core.put(key, owner, content, destination, effects))?)
    }

    /// As [`Core::fetch`].
    ///
    /// # Errors
    /// The index of a key that there is no future of.
    pub fn fetch<'a>(
        &self,
        ticket: u64,
        keys: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), usize> {
        let engine = &mut *lock(&self.engine);
        let (begun, effects) = self.step(|core, effects| core.fetch(ticket, keys, effects), None);
        self.follow(engine, effects);
        begun
    }

    /// As [`Core::cancel_fetch`].
    pub fn cancel_fetch(&self, ticket: u64) {
        let engine = &mut *lock(&self.engine);
        let ((), effects) = self.step(|core, effects| core.cancel_fetch(ticket, effects), None);
        self.follow(engine, effects);
    }
}

/// Submissions. [`Client::flush`] is to be called whenever one is full, [`Client::finish`] at the end;
/// an encoder may hold the interpreter's lock around [`Submission::add`] and let it go around the
/// others.
impl<T> Client<T> {
    /// As [`Core::submission`].
    pub fn submission(&self) -> Submission<T> {
        lock(&self.core).submission()
    }

    /// As [`Core::read`].
    pub fn read(&self, submission: &mut Submission<T>, key: &[u8]) -> Option<Input> {
        lock(&self.core).read(submission, key)
    }

    /// As [`Core::read_coming`].
    pub fn read_coming(&self, submission: &mut Submission<T>, key: &[u8]) -> Option<Input> {
        lock(&self.core).read_coming(submission, key)
    }

    /// As [`Core::constant`].
    ///
    /// # Errors
    /// When there are no more local ids.
    pub fn constant(
        &self,
        submission: &mut Submission<T>,
        key: &[u8],
        content: Content,
        is_intact: IsIntact,
    ) -> Result<Input, ClientError> {
        let put =
            self.act(|core, effects| core.constant(submission, key, content, is_intact, effects));
        Ok(put?)
    }

    /// As [`Core::submit`], without waiting. `definitions` gives the definitions that have not been
    /// sent. It is called under the lock that puts messages in order, so that another thread's batch
    /// may use them too: it must not wait for anything.
    ///
    /// # Errors
    /// When the connection is over.
    pub fn flush(
        &self,
        submission: &mut Submission<T>,
        definitions: impl FnOnce() -> Vec<Definition>,
    ) -> Result<Vec<T>, ClientError> {
        self.submit(|core, effects| core.submit(submission, definitions(), effects))
    }

    /// As [`Core::finish`], otherwise as [`Client::flush`].
    ///
    /// # Errors
    /// When the connection is over.
    pub fn finish(
        &self,
        submission: Submission<T>,
        definitions: impl FnOnce() -> Vec<Definition>,
    ) -> Result<Vec<T>, ClientError> {
        self.submit(|core, effects| core.finish(submission, definitions(), effects))
    }

    /// As [`Core::abandon`].
    ///
    /// # Errors
    /// When the connection is over.
    pub fn abandon(&self, submission: Submission<T>) -> Result<Vec<T>, ClientError> {
        self.submit(|core, effects| core.abandon(submission, effects))
    }

    fn submit(
        &self,
        step: impl FnOnce(&mut State<T>, &mut Effects) -> Result<Vec<T>, Exhausted>,
    ) -> Result<Vec<T>, ClientError> {
        let alive = self.check();
        let mut failed = None;
        let (garbage, rest) = self.step(step, Some(&mut failed));
        debug_assert!(rest.is_empty(), "nobody does {rest:?}");
        alive?;
        match failed {
            Some(error) => Err(error.into()),
            None => Ok(garbage?),
        }
    }

    /// Whether [`Client::wait_for_room`] would return at once.
    pub fn has_room(&self) -> bool {
        self.peer.has_room() && lock(&self.sender).waiting() < WAITING
    }

    /// Waits while more waits to be sent than should. What comes meanwhile is taken, so that the
    /// scheduler is not kept waiting by this client, and processed later.
    ///
    /// # Errors
    /// When the connection or the wait ends.
    pub fn wait_for_room(&self, wait: &mut Wait<'_>) -> Result<(), ClientError> {
        while !self.has_room() {
            self.check()?;
            if let Some(lead) = self.try_lead() {
                lead.make_room(wait)?;
            } else {
                // The leader takes what comes.
                self.wait_briefly(wait)?;
            }
        }
        Ok(())
    }
}
