//! Records of an open connection: RFC 8446, section 5.

use std::ops::Range;

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::error::Unspecified;
use rustls::{AlertDescription, ConnectionTrafficSecrets, Error};

use super::Fault;

pub(super) const ALERT: u8 = 21;
pub(super) const HANDSHAKE: u8 = 22;
pub(super) const APPLICATION_DATA: u8 = 23;
const CHANGE_CIPHER_SPEC: u8 = 20;

/// Bytes before each record: type, version, length.
pub(super) const HEADER: usize = 5;

/// Bytes after each ciphertext.
const TAG: usize = 16;

/// Most bytes that a record carries.
pub(super) const MAX_CONTENT: usize = 1 << 14;

/// What a record has beyond its content: header, type, and tag.
pub(super) const OVERHEAD: usize = HEADER + 1 + TAG;

/// Most bytes after a header: the content and 256 bytes.
const MAX_CIPHERTEXT: usize = MAX_CONTENT + 256;

/// The length with its header of the record that `bytes` begin with, if all of it is there.
///
/// Judges what there is of a header at once: who speaks another protocol may wait for an answer
/// after less than five bytes. Records of a handshake may be in the clear.
pub(super) fn complete_record(bytes: &[u8], handshake: bool) -> Result<Option<usize>, Fault> {
    let known = if handshake {
        CHANGE_CIPHER_SPEC..=APPLICATION_DATA
    } else {
        APPLICATION_DATA..=APPLICATION_DATA
    };
    if bytes.first().is_some_and(|kind| !known.contains(kind))
        || bytes.get(1).is_some_and(|&major| major != 3)
    {
        return Err(Fault::invalid(
            AlertDescription::UnexpectedMessage,
            "the peer does not speak TLS: is treadle+tls:// written on one side only?",
        ));
    }
    let &[_, _, _, high, low, ref rest @ ..] = bytes else {
        return Ok(None);
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length > MAX_CIPHERTEXT {
        return Err(Fault::invalid(
            AlertDescription::RecordOverflow,
            "the peer sent a TLS record that is too long",
        ));
    }
    Ok((rest.len() >= length).then_some(HEADER + length))
}

/// The keys of one direction.
struct Keys {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    sequence: u64,
}

impl Keys {
    fn new((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Self, Error> {
        let unusable = || Error::General("the TLS keys cannot be used".into());
        // The only cipher suite that our configurations name.
        let ConnectionTrafficSecrets::Aes128Gcm { key, iv } = secrets else {
            return Err(unusable());
        };
        Ok(Keys {
            key: UnboundKey::new(&AES_128_GCM, key.as_ref())
                .map(LessSafeKey::new)
                .map_err(|Unspecified| unusable())?,
            iv: iv.as_ref().try_into().map_err(|_| unusable())?,
            sequence,
        })
    }

    /// RFC 8446, section 5.3: the initial vector, its last eight bytes xor the record's number.
    fn next_nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, number) in nonce[NONCE_LEN - 8..]
            .iter_mut()
            .zip(self.sequence.to_be_bytes())
        {
            *byte ^= number;
        }
        self.sequence += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// Makes records.
pub(super) struct Sealer(Keys);

impl Sealer {
    pub(super) fn new(secrets: (u64, ConnectionTrafficSecrets)) -> Result<Self, Error> {
        Keys::new(secrets).map(Sealer)
    }

    /// How many records were made with these keys.
    pub(super) fn records(&self) -> u64 {
        self.0.sequence
    }

    /// Writes the record of `content` to `out`, which is [`OVERHEAD`] longer.
    pub(super) fn seal(&mut self, kind: u8, content: &[u8], out: &mut [u8]) -> Result<(), Fault> {
        let header = write_header(out);
        let (ciphertext, rest) = out[HEADER..].split_at_mut(content.len());
        let nonce = self.0.next_nonce();
        self.0
            .key
            .seal_out_of_place_scatter(nonce, Aad::from(header), content, ciphertext, &[kind], rest)
            .map_err(unsealed)
    }

    /// The same for content that lies in `out` already, after the place of the header.
    pub(super) fn seal_in_place(&mut self, kind: u8, out: &mut [u8]) -> Result<(), Fault> {
        let header = write_header(out);
        let content = out.len() - OVERHEAD;
        let (content, rest) = out[HEADER..].split_at_mut(content);
        let nonce = self.0.next_nonce();
        self.0
            .key
            .seal_in_place_scatter(nonce, Aad::from(header), content, &[kind], rest)
            .map_err(unsealed)
    }
}

fn write_header(out: &mut [u8]) -> [u8; HEADER] {
    let length = (out.len() - HEADER) as u16;
    let [high, low] = length.to_be_bytes();
    let header = [APPLICATION_DATA, 3, 3, high, low];
    out[..HEADER].copy_from_slice(&header);
    header
}

fn unsealed(Unspecified: Unspecified) -> Fault {
    Fault::invalid(
        AlertDescription::InternalError,
        "a TLS record could not be encrypted",
    )
}

/// Opens records.
pub(super) struct Opener(Keys);

impl Opener {
    pub(super) fn new(secrets: (u64, ConnectionTrafficSecrets)) -> Result<Self, Error> {
        Keys::new(secrets).map(Opener)
    }

    /// Bytes that [`Opener::open_into`] needs for `record`: its content, type and padding.
    pub(super) fn opened_len(record: &[u8]) -> usize {
        record.len().saturating_sub(HEADER + TAG)
    }

    /// Decrypts `record` into `out`, of [`Opener::opened_len`]. Returns the type of the content,
    /// and its length.
    pub(super) fn open_into(
        &mut self,
        record: &[u8],
        out: &mut [u8],
    ) -> Result<(u8, usize), Fault> {
        let (header, body) = record.split_at(HEADER);
        let Some((ciphertext, tag)) = body.split_last_chunk::<TAG>() else {
            return Err(unopened(Unspecified));
        };
        let nonce = self.0.next_nonce();
        self.0
            .key
            .open_separate_gather(nonce, Aad::from(header), ciphertext, tag, out)
            .map_err(unopened)?;
        content(out)
    }

    /// Decrypts `record` where it is. Returns the type of the content, and where it lies.
    pub(super) fn open_in_place(&mut self, record: &mut [u8]) -> Result<(u8, Range<usize>), Fault> {
        let (header, body) = record.split_at_mut(HEADER);
        let nonce = self.0.next_nonce();
        let opened = self
            .0
            .key
            .open_in_place(nonce, Aad::from(header), body)
            .map_err(unopened)?;
        let (kind, length) = content(opened)?;
        Ok((kind, HEADER..HEADER + length))
    }
}

fn unopened(Unspecified: Unspecified) -> Fault {
    Fault::invalid(
        AlertDescription::BadRecordMac,
        "a TLS record was changed on its way",
    )
}

/// The type and the length of the content: what follows is zeros (RFC 8446, section 5.4).
fn content(opened: &[u8]) -> Result<(u8, usize), Fault> {
    match opened.iter().rposition(|&byte| byte != 0) {
        Some(length) if length <= MAX_CONTENT => Ok((opened[length], length)),
        Some(_) => Err(Fault::invalid(
            AlertDescription::RecordOverflow,
            "the peer sent a TLS record that is too long",
        )),
        None => Err(Fault::invalid(
            AlertDescription::UnexpectedMessage,
            "the peer sent a TLS record without a type",
        )),
    }
}
