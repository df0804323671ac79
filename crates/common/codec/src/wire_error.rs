//! Bytes that are no messages.

/// Why bytes from another node are not what they should be. The node breaks the protocol, or speaks
/// another version of it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WireError {
    /// Not Protocol Buffers, or not of the expected schema.
    #[error("malformed message: {0}")]
    Malformed(#[from] prost::DecodeError),
    /// A column ends before its entries do.
    #[error("the column {column:?} is too short")]
    Short {
        /// Its name.
        column: &'static str,
    },
    /// A column goes on after its last entry.
    #[error("the column {column:?} is too long")]
    Surplus {
        /// Its name.
        column: &'static str,
    },
    /// An integer is not in its shortest form, or has more than 64 bits.
    #[error("a malformed integer in the column {column:?}")]
    Integer { column: &'static str },
    /// A number has no meaning here.
    #[error("{value} cannot be in the column {column:?}")]
    Range {
        column: &'static str,
        /// The number.
        value: u64,
    },
    /// A message lacks something, or has something that this node does not know.
    #[error("a message without a known {0}")]
    Missing(&'static str),
    /// A message that does not go in this direction.
    #[error("{0} is not said in this direction")]
    Direction(&'static str),
    /// More entries than a message may have.
    #[error("{what} of {count} entries; at most {most} are allowed")]
    TooMany {
        /// What has them.
        what: &'static str,
        /// How many.
        count: u64,
        /// The limit.
        most: u64,
    },
    /// A large packet holds more than one message.
    #[error("a packet of {0} bytes holds more than one message")]
    Crowded(usize),
    /// Another version of the protocol.
    #[error(
        "protocol {theirs} is spoken there, and {ours} here: install the same version of Treadle \
         on all nodes"
    )]
    Protocol {
        /// The other side's.
        theirs: u32,
        /// This side's.
        ours: u32,
    },
}

impl WireError {
    /// Names the column, where that is not known yet.
    pub fn in_column(mut self, name: &'static str) -> Self {
        match &mut self {
            Self::Short { column }
            | Self::Surplus { column }
            | Self::Integer { column }
            | Self::Range { column, .. }
            | Self::TooMany { what: column, .. }
                if column.is_empty() =>
            {
                *column = name;
            }
            _ => {}
        }
        self
    }
}
