use std::os::fd::AsFd;

use treadle_transfer::TransferId;

use super::data::tcp_pair;
use super::*;
use crate::driver::drivers;
use crate::handshaking::Nobody;
use crate::peer::Established;
use crate::secret::Secret;
use crate::sources::Interest;
use crate::stream::Stream;
use crate::{Config, Peer, Wait, wire};

/// The socket does not report what has been read from it.
#[test]
fn what_came_with_the_end_of_the_handshake_reaches_the_pair() {
    let node = Ca::new().node(NODE_NAME, 1);
    let (here, there) = tcp_pair();
    let mut pair = Pair {
        client: Tls::client(node.client_config().unwrap()).unwrap(),
        server: Tls::server(node.server_config().unwrap()).unwrap(),
        here,
        there,
    };
    pair.shake_hands().unwrap();
    let mut bytes = vec![0];
    let frames = [&b"abc"[..]].into_iter();
    wire::encode_object(TransferId(1), 7, &[3], None, frames, &mut bytes);
    write(&mut pair.client, &mut pair.here, &bytes).unwrap();

    let mut stream = Stream::Tls(pair.there, Box::new(pair.server));
    while is_blocked(stream.read(&mut [0])) {}
    let driver = Arc::clone(&drivers().unwrap()[0]);
    let sources = &driver.sources;
    let token = sources.register(Arc::new(Nobody), stream.as_fd(), Interest::None, true);
    let established = Established {
        stream,
        driver,
        token: token.unwrap(),
        session: 1,
        session_secret: Secret::new([1; 32]).unwrap(),
        service: 0,
        peer_credit: 1 << 20,
        address: "a client".into(),
        cluster: None,
    };
    let peer = Peer::start(established, &Config::default(), None);
    let mut soon = Wait {
        deadline: Some(Instant::now() + Duration::from_secs(20)),
        interrupted: None,
    };
    let incoming = peer.next(&mut soon).unwrap();
    assert_eq!(incoming.header(), (7, vec![3]));
}
