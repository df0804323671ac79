//! The further connections of a pair: stripes, and the one for descriptors.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use treadle_reactor::drivers;
use treadle_transfer::{Event, StripeId};

use crate::dial::{begin, take};
use crate::dialled;
use crate::handshake::{Handshake, HandshakeError};
use crate::handshaking::{Finish, Handshaking, Opened, hello};
use crate::incoming::InStripe;
use crate::local;
use crate::outgoing::OutStripe;
use crate::peer::Shared;
use crate::segments::Channel;
use crate::stream::Stream;
use crate::wire::proto::Role;

/// How long a further connection of an existing pair may take.
const STRIPE_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens the descriptor connection of a pair.
pub(crate) fn descriptors(shared: &Arc<Shared>, name: &[u8]) -> io::Result<()> {
    let socket = local::connect(name)?;
    let mut own = hello(Role::Descriptors);
    own.session = shared.session;
    own.dialled = Some(dialled::unix(name));
    let handshake = Handshake::client(own, Some(shared.session_secret.clone()));
    let pair = Arc::clone(shared);
    Handshaking::start(
        &shared.driver,
        Stream::Unix(socket),
        handshake,
        None,
        STRIPE_TIMEOUT,
        Box::new(move |opened| {
            // Without this connection all bytes go through sockets.
            if let Ok(Opened {
                stream: Stream::Unix(socket),
                driver,
                token,
                ..
            }) = opened
            {
                Channel::start(&pair, socket, &driver, token);
            }
        }),
    )
}

/// Opens a stripe: for this side to send on, or for the other.
pub(crate) fn stripe(shared: &Arc<Shared>, stripe: StripeId, sends: bool) {
    let pair = Arc::clone(shared);
    let finish = move |opened: Result<Opened, HandshakeError>| match opened {
        Ok(opened) => start_stripe(&pair, stripe, opened, sends),
        Err(error) => stripe_failed(&pair, stripe, sends, error.to_string()),
    };
    let finish = Arc::new(Mutex::new(Some(finish)));
    // One of two calls it: the driver, or this function where nothing can be begun.
    let later = Arc::clone(&finish);
    if let Err(error) = dial_stripe(
        shared,
        stripe,
        sends,
        Box::new(move |opened| {
            if let Some(finish) = take(&later) {
                finish(opened);
            }
        }),
    ) && let Some(finish) = take(&finish)
    {
        finish(Err(HandshakeError::Connect(error.to_string())));
    }
}

fn dial_stripe(
    shared: &Arc<Shared>,
    stripe: StripeId,
    sends: bool,
    finish: Finish,
) -> io::Result<()> {
    let remote = shared.remote.as_ref().expect("only this side dials");
    let drivers = drivers()?;
    let driver =
        &drivers[(shared.session as usize).wrapping_add(stripe.0 as usize) % drivers.len()];
    let stream = begin(remote.socket, remote.tls.as_ref())?;
    let mut own = hello(if sends {
        Role::StripeToListener
    } else {
        Role::StripeToClient
    });
    own.session = shared.session;
    own.stripe = stripe.0;
    own.dialled = remote.dialled(&stream);
    let handshake = Handshake::client(own, Some(shared.session_secret.clone()));
    Handshaking::start(driver, stream, handshake, None, STRIPE_TIMEOUT, finish)
}

/// Gives a further connection that a client has opened to its pair.
pub(crate) fn attach(pair: &Arc<Shared>, opened: Opened) {
    let stripe = StripeId(opened.hello.stripe);
    match opened.hello.role() {
        Role::StripeToListener => start_stripe(pair, stripe, opened, false),
        Role::StripeToClient => start_stripe(pair, stripe, opened, true),
        // Where the pair itself lives: no other thread wakes for it.
        Role::Descriptors => match opened.moved(&pair.driver) {
            Ok(Opened {
                stream: Stream::Unix(socket),
                driver,
                token,
                ..
            }) => Channel::start(pair, socket, &driver, token),
            Ok(opened) => opened.abandon(),
            Err(_) => {}
        },
        Role::Unspecified | Role::Control => opened.abandon(),
    }
}

/// Gives an open connection to the pair whose stripe it is.
pub(crate) fn start_stripe(shared: &Arc<Shared>, stripe: StripeId, opened: Opened, sends: bool) {
    let Opened {
        stream,
        driver,
        token,
        ..
    } = opened;
    if sends {
        OutStripe::start(shared, stripe, stream, &driver, token);
    } else {
        InStripe::start(shared, stripe, stream, &driver, token);
    }
}

fn stripe_failed(shared: &Arc<Shared>, stripe: StripeId, sends: bool, reason: String) {
    shared.handle(if sends {
        Event::OpenFailed(stripe, reason)
    } else {
        Event::DialFailed(stripe, reason)
    });
}
