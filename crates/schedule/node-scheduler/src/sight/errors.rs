//! The text in what a task raised, without Python.
//!
//! A worker says it as `treadle.errors` does: a pickle (protocol 5) of the pickled exception, its pickled
//! traceback or `None`, its text, and that of its traceback. Only that form is read, and nothing of it is run.

/// The text, and that of the traceback, which may be empty, if the bytes have that form.
pub(in crate::sight) fn texts(pickle: &[u8]) -> Option<(&str, &str)> {
    let mut rest = Rest(pickle);
    let text = next_text(&mut rest, 2)?;
    Some((text, next_text(&mut rest, 0).unwrap_or_default()))
}

/// The text that follows so many bytes or none.
fn next_text<'a>(rest: &mut Rest<'a>, before: u32) -> Option<&'a str> {
    let mut found = 0;
    loop {
        match rest.byte()? {
            // Protocol, frame, a tuple's begin, and what is remembered.
            0x80 => drop(rest.take(1)?),
            0x95 => drop(rest.take(8)?),
            0x94 | b'(' => {}
            // Bytes, or none.
            b'C' => rest.skip(1, &mut found)?,
            b'B' => rest.skip(4, &mut found)?,
            0x8e => rest.skip(8, &mut found)?,
            b'N' => found += 1,
            0x8c if found == before => return rest.text(1),
            b'X' if found == before => return rest.text(4),
            0x8d if found == before => return rest.text(8),
            _ => return None,
        }
    }
}

struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// A length of so many bytes, and what it is of.
    fn long(&mut self, width: usize) -> Option<&'a [u8]> {
        let mut length = [0; 8];
        length[..width].copy_from_slice(self.take(width)?);
        self.take(usize::try_from(u64::from_le_bytes(length)).ok()?)
    }

    fn skip(&mut self, width: usize, found: &mut u32) -> Option<()> {
        *found += 1;
        self.long(width).map(drop)
    }

    fn text(&mut self, width: usize) -> Option<&'a str> {
        str::from_utf8(self.long(width)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `pickle.dumps((b"abc", None, "it's ä"), protocol=5)`.
    const SHORT: &[u8] =
        b"\x80\x05\x95\x15\0\0\0\0\0\0\0C\x03abc\x94N\x8c\x07it's \xc3\xa4\x94\x87\x94.";

    #[test]
    fn the_texts_are_found_and_other_bytes_are_none() {
        fn text(pickle: &[u8]) -> Option<&str> {
            texts(pickle).map(|(text, _)| text)
        }
        // `pickle.dumps((b"abc", None, "it's ä", "in f"), protocol=5)`.
        let whole = b"\x80\x05\x95\x1c\0\0\0\0\0\0\0(C\x03abc\x94N\x8c\x07it's \xc3\xa4\x94\x8c\x04in f\x94t\x94.";
        assert_eq!(texts(whole), Some(("it's ä", "in f")));
        assert_eq!(texts(SHORT), Some(("it's ä", "")));
        let long = [
            &b"\x80\x05B\x02\0\0\0ab\x94C\x01x\x94X\x03\0\0\0"[..],
            b"why",
        ]
        .concat();
        assert_eq!(text(&long), Some("why"));
        for end in 0..SHORT.len() - 4 {
            assert_eq!(text(&SHORT[..end]), None, "{end}");
        }
        assert_eq!(text(b"cos\nsystem\n"), None);
        assert_eq!(text(b"\x80\x05\x8e\xff\xff\xff\xff\xff\xff\xff\xff"), None);
    }
}
