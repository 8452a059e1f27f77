//! Decoding UTF-8 from chunks.

/// Decodes UTF-8 chunk by chunk. A character split between chunks is held back until it is complete; invalid
/// bytes become replacement characters. The pieces together are the lossy decoding of all the bytes.
#[derive(Debug, Default)]
pub struct Utf8Stream {
    /// The beginning of an incomplete character, at most three bytes.
    cut: Vec<u8>,
}

impl Utf8Stream {
    /// Returns the text that these bytes complete.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        let mut all = std::mem::take(&mut self.cut);
        all.extend_from_slice(bytes);
        // Only what is at the end can be completed by more bytes.
        let last = all.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
        let cut = if is_cut(last) { last.len() } else { 0 };
        self.cut = all.split_off(all.len() - cut);
        String::from_utf8_lossy(&all).into_owned()
    }

    /// Returns what is left at the end of the input.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.cut)).into_owned()
    }
}

/// Whether these bytes are the beginning of a character.
fn is_cut(bytes: &[u8]) -> bool {
    !bytes.is_empty() && std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_split_character_is_held_back_until_complete() {
        let mut stream = Utf8Stream::default();
        assert_eq!(stream.push(b"a\xe2\x82"), "a");
        assert_eq!(stream.push(b"\xac!"), "€!");
        assert_eq!(stream.push(b"\xf0\x9f"), "");
        assert_eq!(stream.finish(), "\u{fffd}");
    }

    proptest! {
        #[test]
        fn the_pieces_equal_the_lossy_decoding_of_the_whole(
            bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(0xe2), Just(0x82), Just(0xac)], 0..64),
            cuts in prop::collection::vec(0..8usize, 0..32),
        ) {
            let (mut stream, mut text, mut rest) = (Utf8Stream::default(), String::new(), &bytes[..]);
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                text += &stream.push(piece);
                rest = after;
            }
            text += &stream.push(rest);
            text += &stream.finish();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }
}
