//! Who may talk to whom: what two processes prove to each other before anything else is said.
//!
//! | module | what |
//! | --- | --- |
//! | [`secret`] | the cluster's secret: its file, and proofs that a peer knows it |
//! | [`certs`] | making certificates (`treadle certs`) |
//! | [`tls`] | TLS 1.3 over a nonblocking socket, both sides with a certificate |
//!
//! The handshake that carries the proofs is `treadle-net`'s.

pub mod certs;
pub mod secret;
pub mod tls;
