//! Values that clients bring.
//!
//! A thread that serves connections keeps a value that has room at once. One that has to wait for room has a
//! thread of its own, so that nobody's reads wait behind it. What its connection brings after it waits in that
//! thread, and is not let into memory before its turn.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use treadle_messages::Data;
use treadle_net::{Incoming, NetError, Peer, Received, Wait};
use treadle_reactor::thread::{self, caught, lock};
use treadle_schedule_wire::{data, encode_data};
use treadle_store::{Form, Frames, StoreError};
use treadle_types::ObjectId;
use treadle_worker::Event;

use super::serving::{head, mistaken};
use super::{Inner, PASSED};

/// How long a value may wait for room in memory.
const ROOM: Duration = Duration::from_secs(30);
/// How often a thread that waits for bytes looks whether the worker is over.
const LOOK: Duration = Duration::from_secs(1);

/// What a connection brings.
#[derive(Clone)]
pub(super) struct Bringing {
    peer: Peer,
    queue: Arc<Mutex<Queue>>,
}

#[derive(Default)]
struct Queue {
    /// Oldest first.
    coming: VecDeque<Coming>,
    /// A thread sees to it, since something waits for room.
    has_thread: bool,
}

struct Coming {
    incoming: Incoming,
    is_let_in: bool,
}

/// A value that has no room yet.
struct Homeless {
    object: ObjectId,
    nbytes: u64,
    form: Form,
}

impl Bringing {
    pub(super) fn new(peer: Peer) -> Self {
        let queue = Arc::default();
        Self { peer, queue }
    }

    /// A value is announced.
    pub(super) fn announced(&self, incoming: Incoming) -> Result<(), NetError> {
        let mut queue = lock(&self.queue);
        let is_let_in = !queue.has_thread;
        if is_let_in {
            incoming.accept(Vec::new())?;
        }
        queue.coming.push_back(Coming {
            incoming,
            is_let_in,
        });
        Ok(())
    }

    /// Keeps what is here, unless a thread sees to it.
    pub(super) fn turn(&self, inner: &Arc<Inner>) -> Result<(), NetError> {
        let mut queue = lock(&self.queue);
        while !queue.has_thread && queue.coming.front().is_some_and(Coming::is_done) {
            let first = queue.coming.pop_front().expect("just looked");
            let received = first.incoming.take()?;
            if let Some(homeless) = self.bring(inner, received)? {
                let object = homeless.object;
                match self.wait(inner, homeless) {
                    Ok(()) => queue.has_thread = true,
                    Err(error) => self.answer(object, Some(error.to_string()))?,
                }
            }
        }
        Ok(())
    }

    /// Has a thread wait for room.
    fn wait(&self, inner: &Arc<Inner>, homeless: Homeless) -> std::io::Result<()> {
        let (bringing, inner) = (self.clone(), Arc::clone(inner));
        let body = move || {
            let served = caught(|| bringing.serve(&inner, homeless));
            let reason = match served {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(panicked) => panicked.to_string(),
            };
            if bringing.peer.ended().is_none() {
                inner.log(format_args!("a client's values are not taken: {reason}"));
                bringing.peer.start_close();
            }
        };
        thread::start("treadle-bring", body).map(drop)
    }

    /// Keeps a value that waits for room, and what comes after it.
    fn serve(&self, inner: &Arc<Inner>, homeless: Homeless) -> Result<(), NetError> {
        self.house(inner, homeless, ROOM)?;
        loop {
            let next = {
                let mut queue = lock(&self.queue);
                let next = queue.coming.pop_front();
                queue.has_thread = next.is_some();
                next
            };
            let Some(Coming {
                incoming,
                is_let_in,
            }) = next
            else {
                return Ok(());
            };
            if !is_let_in {
                incoming.accept(Vec::new())?;
            }
            while !incoming.is_done() && !inner.is_over() {
                let _ = incoming.wait(&mut Wait {
                    deadline: Some(Instant::now() + LOOK),
                    interrupted: None,
                });
            }
            if inner.is_over() {
                return Ok(());
            }
            if let Some(homeless) = self.bring(inner, incoming.take()?)? {
                self.house(inner, homeless, ROOM)?;
            }
        }
    }

    /// Keeps a value if it has room now; gives it back where it may have some later.
    fn bring(&self, inner: &Inner, received: Received) -> Result<Option<Homeless>, NetError> {
        let mut frames = received.frames.into_iter();
        let Some(data::Put {
            object: name,
            kind,
            worker,
        }) = head(frames.next().as_ref())
        else {
            self.peer.start_close();
            return Ok(None);
        };
        let object = ObjectId::from_u64(name);
        if worker != inner.id.0 {
            let answer = self.answer(object, Some(mistaken(worker, inner)));
            return answer.map(|()| None);
        }
        let parts = frames.map(treadle_net::Frame::into_bytes).collect();
        match form(inner, Frames::new(kind, parts)) {
            Ok((nbytes, form)) => {
                let homeless = Homeless {
                    object,
                    nbytes,
                    form,
                };
                self.house(inner, homeless, Duration::ZERO)
            }
            Err(reason) => {
                let answer = self.answer(object, Some(reason.to_owned()));
                answer.map(|()| None)
            }
        }
    }

    /// Keeps a value, if it has room within this time. If it may have none now, and that was all the time, it is
    /// given back.
    fn house(
        &self,
        inner: &Inner,
        homeless: Homeless,
        timeout: Duration,
    ) -> Result<Option<Homeless>, NetError> {
        let Homeless {
            object,
            nbytes,
            form,
        } = homeless;
        match inner.values.put(object, form, timeout) {
            Ok(()) => {
                inner.brought(object, nbytes);
                self.answer(object, None).map(|()| None)
            }
            Err(put) if timeout.is_zero() && may_have_room(&put.error) => Ok(Some(Homeless {
                object,
                nbytes,
                form: put.object,
            })),
            Err(put) => {
                let answer = self.answer(object, Some(put.error.to_string()));
                answer.map(|()| None)
            }
        }
    }

    /// Says whether a value was taken.
    fn answer(&self, object: ObjectId, refused: Option<String>) -> Result<(), NetError> {
        let answer = data::Taken {
            object: object.to_u64(),
            refused,
        };
        self.peer
            .send(Data::TAKEN, &[encode_data(&answer)])
            .map(drop)
    }
}

impl Coming {
    fn is_done(&self) -> bool {
        self.is_let_in && self.incoming.is_done()
    }
}

impl Inner {
    /// A client has brought a value.
    pub(super) fn brought(&self, object: ObjectId, nbytes: u64) {
        self.handle(Event::Put { object, nbytes });
        self.flush();
    }
}

/// What a client has brought, and its bytes; or why it cannot be kept.
fn form(inner: &Inner, frames: Frames) -> Result<(u64, Form), &'static str> {
    if frames.kind() != PASSED {
        return Ok((frames.nbytes(), frames.into()));
    }
    let embedder = inner.embedder.get().zip(frames.parts().first());
    let live = embedder.and_then(|(embedder, name)| embedder.passed(name));
    let live = live.ok_or("it cannot be serialised, and is of another process")?;
    Ok((live.nbytes(), live.into()))
}

/// Whether something that does not fit may fit later.
fn may_have_room(error: &StoreError) -> bool {
    match error {
        StoreError::NoMemory { needed, limit, .. } => needed <= limit,
        _ => true,
    }
}
