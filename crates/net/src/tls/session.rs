//! An open connection: application data, changes of keys, the closing message.

use std::ops::Range;

use aws_lc_rs::digest;
use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{AlertDescription, ConnectionTrafficSecrets, Error, ExtractedSecrets};

use super::Fault;
use super::buffer::{Buffer, Sources, Targets};
use super::record::{
    ALERT, APPLICATION_DATA, HANDSHAKE, HEADER, MAX_CONTENT, OVERHEAD, Opener, Sealer,
    complete_record,
};

/// Pieces of plaintext below this are gathered into one record: a record costs about as much as
/// copying so many bytes.
const GATHERED: usize = 4096;

/// Records of one key: half of what RFC 8446, section 5.5, allows.
const REKEY_AFTER: u64 = 1 << 23;

/// Records without data that a peer may send in a row.
const MAX_IDLE: u32 = 32;

const CLOSE_NOTIFY: u8 = 0;
const USER_CANCELED: u8 = 90;
const WARNING: u8 = 1;
const FATAL: u8 = 2;

/// `KeyUpdate` that asks for none in return (RFC 8446, section 4.6.3).
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];

/// What makes the keys that follow.
pub(super) enum KeySchedule {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

impl KeySchedule {
    fn next_sealing(&mut self) -> Result<(u64, ConnectionTrafficSecrets), Error> {
        match self {
            KeySchedule::Client(connection) => connection.update_tx_secret(),
            KeySchedule::Server(connection) => connection.update_tx_secret(),
        }
    }

    fn next_opening(&mut self) -> Result<(u64, ConnectionTrafficSecrets), Error> {
        match self {
            KeySchedule::Client(connection) => connection.update_rx_secret(),
            KeySchedule::Server(connection) => connection.update_rx_secret(),
        }
    }
}

pub(super) struct Session {
    binding: [u8; 32],
    schedule: KeySchedule,
    sealer: Sealer,
    opener: Opener,
    /// Where plaintext that the caller had no room for lies, in front of the inbound buffer.
    plaintext: Range<usize>,
    /// Bytes that end with that plaintext, to be dropped once it was taken.
    spent: usize,
    key_update_owed: bool,
    rekey_after: u64,
    /// The peer has said that nothing more comes.
    finished: bool,
    /// We have said it.
    closing: bool,
    idle: u32,
}

impl Session {
    pub(super) fn new(secrets: ExtractedSecrets, schedule: KeySchedule) -> Result<Self, Error> {
        Ok(Session {
            binding: binding(&secrets, matches!(schedule, KeySchedule::Client(_))),
            schedule,
            sealer: Sealer::new(secrets.tx)?,
            opener: Opener::new(secrets.rx)?,
            plaintext: 0..0,
            spent: 0,
            key_update_owed: false,
            rekey_after: REKEY_AFTER,
            finished: false,
            closing: false,
            idle: 0,
        })
    }

    /// See [`Tls::binding`](super::Tls::binding).
    pub(super) fn binding(&self) -> [u8; 32] {
        self.binding
    }

    #[cfg(test)]
    pub(super) fn rekey_after(&mut self, records: u64) {
        self.rekey_after = records;
    }

    /// Seals what a peer should not send.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn raw_record(&mut self, kind: u8, content: &[u8], outbound: &mut Buffer) {
        assert!(self.append(kind, content, outbound).is_ok());
    }

    /// Takes the keys that follow a `KeyUpdate` that was sent as a raw record.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn follow_key_update(&mut self) {
        self.sealer = Sealer::new(self.schedule.next_sealing().unwrap()).unwrap();
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finished
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    pub(super) fn owes_key_update(&self) -> bool {
        self.key_update_owed
    }

    /// Whether [`Session::deliver`] can do anything.
    pub(super) fn can_deliver(&self, inbound: &Buffer) -> bool {
        !self.plaintext.is_empty()
            || (!self.finished && !matches!(complete_record(inbound.filled(), false), Ok(None)))
    }

    /// Opens records into `targets` until those are full or no whole record is left. All that was
    /// kept is delivered when the targets have room left.
    pub(super) fn deliver(
        &mut self,
        inbound: &mut Buffer,
        targets: &mut Targets<'_, '_>,
    ) -> Result<(), Fault> {
        loop {
            if !self.plaintext.is_empty() {
                let copied = targets.copy(&inbound.filled()[self.plaintext.clone()]);
                self.plaintext.start += copied;
                if !self.plaintext.is_empty() {
                    return Ok(());
                }
            }
            inbound.consume(std::mem::take(&mut self.spent));
            if targets.is_full() || self.finished {
                return Ok(());
            }
            let Some(length) = complete_record(inbound.filled(), false)? else {
                return Ok(());
            };
            let record = &mut inbound.filled_mut()[..length];
            let opened = Opener::opened_len(record);
            if let Some(target) = targets.current().get_mut(..opened) {
                let (kind, content) = self.opener.open_into(record, target)?;
                inbound.consume(length);
                if kind == APPLICATION_DATA && content > 0 {
                    self.idle = 0;
                    targets.fill(content);
                } else {
                    self.control(kind, &targets.current()[..content])?;
                }
            } else {
                let (kind, content) = self.opener.open_in_place(record)?;
                if kind == APPLICATION_DATA && !content.is_empty() {
                    self.idle = 0;
                    self.plaintext = content;
                    self.spent = length;
                } else {
                    self.control(kind, &record[content])?;
                    inbound.consume(length);
                }
            }
        }
    }

    /// Acts on a record without data.
    fn control(&mut self, kind: u8, content: &[u8]) -> Result<(), Fault> {
        self.idle += 1;
        if self.idle > MAX_IDLE {
            return Err(Fault::invalid(
                AlertDescription::UnexpectedMessage,
                "the peer sends TLS records without data",
            ));
        }
        match (kind, content) {
            (APPLICATION_DATA, []) | (ALERT, [_, USER_CANCELED]) => Ok(()),
            (ALERT, [_, CLOSE_NOTIFY]) => {
                self.finished = true;
                Ok(())
            }
            (ALERT, &[_, alert]) => Err(Fault::received(alert.into())),
            (HANDSHAKE, &[24, 0, 0, 1, asked @ (0 | 1)]) => {
                let secrets = self.schedule.next_opening().map_err(unscheduled)?;
                self.opener = Opener::new(secrets).map_err(unscheduled)?;
                // However often it was asked for, one is owed: memory stays bounded.
                self.key_update_owed |= asked == 1;
                Ok(())
            }
            _ => Err(Fault::invalid(
                AlertDescription::UnexpectedMessage,
                "the peer sent a TLS message that has no place in an open connection",
            )),
        }
    }

    /// Seals plaintext into `outbound` until that is full.
    pub(super) fn seal(
        &mut self,
        sources: &mut Sources<'_>,
        outbound: &mut Buffer,
    ) -> Result<(), Fault> {
        if self.key_update_owed {
            self.pay_key_update(outbound)?;
        }
        while !sources.is_empty() && outbound.has_room(MAX_CONTENT + OVERHEAD) {
            if self.sealer.records() >= self.rekey_after {
                self.update_sealing_key(outbound)?;
                continue;
            }
            let piece = sources.current();
            if piece.len() >= GATHERED {
                let count = piece.len().min(MAX_CONTENT);
                self.append(APPLICATION_DATA, &piece[..count], outbound)?;
                sources.take(count);
            } else {
                self.append_gathered(sources, outbound)?;
            }
        }
        Ok(())
    }

    fn append_gathered(
        &mut self,
        sources: &mut Sources<'_>,
        outbound: &mut Buffer,
    ) -> Result<(), Fault> {
        let space = outbound.space(MAX_CONTENT + OVERHEAD);
        let content = &mut space[HEADER..HEADER + MAX_CONTENT];
        let mut gathered = 0;
        while !sources.is_empty() && sources.current().len() < GATHERED {
            let piece = sources.current();
            if piece.len() > MAX_CONTENT - gathered {
                break;
            }
            content[gathered..gathered + piece.len()].copy_from_slice(piece);
            gathered += piece.len();
            sources.take(piece.len());
        }
        let record = gathered + OVERHEAD;
        self.sealer
            .seal_in_place(APPLICATION_DATA, &mut space[..record])?;
        outbound.append(record);
        Ok(())
    }

    fn append(&mut self, kind: u8, content: &[u8], outbound: &mut Buffer) -> Result<(), Fault> {
        let record = content.len() + OVERHEAD;
        self.sealer.seal(kind, content, outbound.space(record))?;
        outbound.append(record);
        Ok(())
    }

    fn update_sealing_key(&mut self, outbound: &mut Buffer) -> Result<(), Fault> {
        self.append(HANDSHAKE, &KEY_UPDATE, outbound)?;
        let secrets = self.schedule.next_sealing().map_err(unscheduled)?;
        self.sealer = Sealer::new(secrets).map_err(unscheduled)?;
        Ok(())
    }

    /// Answers a peer that asked for new keys.
    pub(super) fn pay_key_update(&mut self, outbound: &mut Buffer) -> Result<(), Fault> {
        self.key_update_owed = false;
        if self.closing {
            return Ok(());
        }
        self.update_sealing_key(outbound)
    }

    /// Says that nothing more comes; once.
    pub(super) fn close(&mut self, outbound: &mut Buffer) -> Result<(), Fault> {
        if self.closing {
            return Ok(());
        }
        self.closing = true;
        self.append(ALERT, &[WARNING, CLOSE_NOTIFY], outbound)
    }

    /// Tells the peer why the connection is given up.
    pub(super) fn alert(&mut self, alert: AlertDescription, outbound: &mut Buffer) {
        // It is given up in any case.
        let _ = self.append(ALERT, &[FATAL, alert.into()], outbound);
    }
}

/// A digest of the first keys of both directions, the client's before the server's. Nobody can make
/// two connections have the same ones, and it tells nothing of them.
fn binding(secrets: &ExtractedSecrets, is_client: bool) -> [u8; 32] {
    let (client, server) = if is_client {
        (&secrets.tx, &secrets.rx)
    } else {
        (&secrets.rx, &secrets.tx)
    };
    let mut digest = digest::Context::new(&digest::SHA256);
    digest.update(b"treadle channel\0");
    for (_, secret) in [client, server] {
        // There is no other cipher suite: the session refuses its keys.
        if let ConnectionTrafficSecrets::Aes128Gcm { key, iv } = secret {
            digest.update(key.as_ref());
            digest.update(iv.as_ref());
        }
    }
    let digest = digest.finish();
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

fn unscheduled(error: Error) -> Fault {
    Fault {
        alert: Some(AlertDescription::InternalError),
        error: super::explain(error),
    }
}
