//! How a process joins a master: it says who it is, and is told its number.

use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_net::{Address, Lane, NetError, Options, Peer, Wait};

use crate::protocol::Protocol;
use crate::wire::{self, Hello, Welcome};
use crate::{SERVICE, ServiceError};

/// The longest wait of a thread that hears a master.
const LOOK: Duration = Duration::from_secs(5);

/// A greeting, without what only servers say.
pub(crate) fn hello(name: &str, application: u64, priority: u32) -> Hello {
    let ours = Protocol::ours();
    Hello {
        name: name.into(),
        application,
        priority,
        version: env!("CARGO_PKG_VERSION").into(),
        newest: ours.newest,
        oldest: ours.oldest,
        ..Hello::default()
    }
}

/// Connects to a master, and returns what it answers.
///
/// # Errors
/// It cannot be reached, refuses this process, or is none.
pub(crate) fn join(
    master: &Address,
    net: &Options,
    hello: &Hello,
    wait: &mut Wait<'_>,
) -> Result<(Peer, Welcome), ServiceError> {
    // The thread that hears the master moves nothing but its messages: rows of others are moved by
    // those that handle them, without a hand-over.
    let to_master = Options {
        lane: Some(Lane::attended()?),
        shared_memory: false,
        service: SERVICE,
        ..net.clone()
    };
    let peer = Peer::connect(master, &to_master, wait)?;
    wire::send(&peer, wire::HELLO, hello);
    let object = peer.next(wait)?;
    let object = wire::accept(&peer, object, wire::LONGEST)?;
    let object = object.ok_or_else(|| ServiceError::Refused("its answer is too long".into()))?;
    object.wait(wait)?;
    let (kind, bytes) = wire::take(object)?;
    let welcome = wire::decode::<Welcome>(&bytes).ok();
    let Some(welcome) = welcome.filter(|_| kind == wire::WELCOME) else {
        let text = format!("{master} is no shuffle master");
        return Err(ServiceError::Refused(text));
    };
    check(&welcome)?;
    Ok((peer, welcome))
}

/// Whether a master takes this process, and speaks as it does.
///
/// # Errors
/// It does not.
pub(crate) fn check(welcome: &Welcome) -> Result<(), ServiceError> {
    if !welcome.refused.is_empty() {
        let text = format!(
            "the shuffle master refuses this process: {}",
            welcome.refused
        );
        return Err(ServiceError::Refused(text));
    }
    let ours = Protocol::ours();
    if !(ours.oldest..=ours.newest).contains(&welcome.protocol) {
        let text = format!(
            "the shuffle master answers in protocol {} of the service, and this process speaks {ours}: \
             upgrade the older one",
            welcome.protocol
        );
        return Err(ServiceError::Refused(text));
    }
    Ok(())
}

/// Takes what comes on a connection until it ends, or `is_over` says so; returns why. `look` is called now and
/// then.
pub(crate) fn attend(
    peer: &Peer,
    is_over: &mut dyn FnMut() -> bool,
    look: &mut dyn FnMut(),
    hear: &mut dyn FnMut(u32, &Bytes),
) -> NetError {
    let mut looked = Instant::now();
    loop {
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            look();
        }
        let mut wait = Wait {
            deadline: Some(Instant::now() + LOOK),
            interrupted: Some(is_over),
        };
        let object = match peer.next(&mut wait) {
            Ok(object) => object,
            Err(error) if peer.ended().is_some() || is_over() => return error,
            // Nothing was said for a while.
            Err(_) => continue,
        };
        let message = wire::accept(peer, object, wire::LONGEST).and_then(|object| match object {
            Some(object) => {
                object.wait(&mut Wait {
                    deadline: None,
                    interrupted: Some(is_over),
                })?;
                wire::take(object).map(Some)
            }
            None => Ok(None),
        });
        match message {
            Ok(Some((kind, bytes))) => hear(kind, &bytes),
            Ok(None) => {}
            Err(error) => return error,
        }
    }
}
