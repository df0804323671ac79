//! What the rows of a shuffle are, and how other processes learn it.

use bytes::Bytes;
use serde_json::{Map, Value, json};
use treadle_compress::Codec;

/// What the rows of a shuffle are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Kind {
    /// Records of any bytes, each of less than 2 GiB. Each takes eight bytes more. `rows=bytes` in Python.
    #[default]
    Records,
    /// Rows of so many bytes each, one at least. They take no more. A NumPy dtype of void in Python.
    Fixed(u32),
}

/// What a shuffle's note says: the line that Python's side reads and writes, too, and what the host has added.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Note {
    pub(crate) kind: Kind,
    pub(crate) codec: Option<Codec>,
    pub(crate) rest: Bytes,
}

impl Kind {
    /// Bytes of a row; 0: they differ.
    pub(crate) fn width(self) -> usize {
        match self {
            Self::Records => 0,
            Self::Fixed(width) => width as usize,
        }
    }
}

impl Note {
    pub(crate) fn encode(&self) -> Bytes {
        let mut said = match self.kind {
            Kind::Records => json!({"kind": "opaque"}),
            Kind::Fixed(width) => json!({"kind": "fixed", "dtype": format!("|V{width}")}),
        };
        if let Some(codec) = self.codec {
            said["compression"] = codec.name().into();
        }
        let mut note = said.to_string().into_bytes();
        if !self.rest.is_empty() {
            note.push(b'\n');
            note.extend_from_slice(&self.rest);
        }
        note.into()
    }

    /// The note with these bytes.
    ///
    /// # Errors
    /// Rows are of a kind, or compressed by something, that is not known here.
    pub(crate) fn parse(note: &Bytes) -> Result<Self, String> {
        let end = note.iter().position(|&byte| byte == b'\n');
        let end = end.unwrap_or(note.len());
        let head = serde_json::from_slice::<Map<String, Value>>(&note[..end]);
        let head = head.map_err(|error| format!("its note is none of this client's: {error}"))?;
        let codec = match head.get("compression").map(Value::as_str) {
            None | Some(Some("none")) => None,
            Some(name) => Some(name.and_then(Codec::named).ok_or_else(|| {
                let name = name.unwrap_or("something");
                format!("its rows are compressed by {name}, which is not known here")
            })?),
        };
        Ok(Self {
            kind: kind(&head)?,
            codec,
            rest: note.slice((end + 1).min(note.len())..),
        })
    }
}

fn kind(head: &Map<String, Value>) -> Result<Kind, String> {
    let said = |name: &str| head.get(name).and_then(Value::as_str);
    if said("kind") == Some("opaque") {
        return Ok(Kind::Records);
    }
    let width = said("dtype").and_then(|dtype| dtype.strip_prefix("|V"));
    let width = width.and_then(|width| width.parse::<u32>().ok());
    match (said("kind"), width) {
        (Some("fixed"), Some(width @ 1..)) => Ok(Kind::Fixed(width)),
        (kind, _) => Err(format!(
            "its rows are {}, which this client does not read: it reads records of bytes, and rows of a fixed width \
             without a type (dtype V8)",
            kind.unwrap_or("of an unknown kind")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_comes_back_with_what_the_host_has_added() {
        for kind in [Kind::Records, Kind::Fixed(1), Kind::Fixed(u32::MAX)] {
            for codec in [None, Some(Codec::Lz4), Some(Codec::Zstd)] {
                for rest in ["", "schema", "two\nlines"] {
                    let rest = Bytes::from(rest);
                    let note = Note { kind, codec, rest };
                    assert_eq!(Note::parse(&note.encode()), Ok(note));
                }
            }
        }
    }

    #[test]
    fn what_is_cut_is_refused_or_has_less_of_what_the_host_has_added() {
        let note = Note {
            kind: Kind::Fixed(8),
            codec: Some(Codec::Zstd),
            rest: Bytes::from("schema"),
        };
        let bytes = note.encode();
        let head = bytes.len() - "\nschema".len();
        for end in 0..bytes.len() {
            let cut = Note::parse(&bytes.slice(..end));
            assert_eq!(cut.is_ok(), end >= head, "{end}");
        }
    }

    #[test]
    fn what_python_writes_is_read_or_refused_by_name() {
        let decode = |note: &'static [u8]| Note::parse(&Bytes::from_static(note));
        let python = decode(br#"{"kind": "opaque", "compression": "lz4"}"#).unwrap();
        assert_eq!(
            (python.kind, python.codec),
            (Kind::Records, Some(Codec::Lz4))
        );
        let refused = |note| decode(note).unwrap_err();
        assert!(refused(br#"{"kind": "fixed", "dtype": "<i8"}"#).contains("rows are fixed"));
        assert!(refused(br#"{"kind": "fixed", "dtype": "|V0"}"#).contains("rows are fixed"));
        assert!(refused(b"{\"kind\": \"arrow\"}\nschema").contains("rows are arrow"));
        assert!(refused(br#"{"kind": "opaque", "compression": "brotli"}"#).contains("by brotli"));
        assert!(refused(br#"{"kind": "opaque", "compression": 3}"#).contains("by something"));
        assert!(refused(b"").contains("none of this client's"));
    }
}
