//! Detection of unprintable characters, which names of processes, users and jobs may contain.

/// Returns whether a character is a control, bidirectional control, zero-width, private-use or noncharacter,
/// or a blank other than the space. Letters that resemble letters of another script are not included.
pub fn is_unprintable(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffd}'
            | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e000}'..='\u{f8ff}' | '\u{e0000}'..='\u{e0fff}' | '\u{f0000}'..)
        || is_blank(character)
        || is_noncharacter(character)
}

/// Returns whether a character is a blank other than the space.
const fn is_blank(character: char) -> bool {
    matches!(
        character,
        '\u{a0}' | '\u{1680}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{2800}' | '\u{3000}'
    )
}

/// Returns whether it is a Unicode noncharacter: the last two code points of each plane, U+FDD0 to U+FDEF.
const fn is_noncharacter(character: char) -> bool {
    matches!(character, '\u{fdd0}'..='\u{fdef}') || character as u32 & 0xfffe == 0xfffe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_show_itself_is_odd() {
        let hidden = "\u{7}\u{85}\u{ad}\u{200b}\u{202e}\u{2066}\u{feff}\u{fffd}\u{e000}\u{e0041}\u{10ffff}";
        let controls = "\u{13430}\u{1bca0}\u{1bca3}\u{1d173}\u{1d17a}";
        let blanks = "\u{a0}\u{1680}\u{2000}\u{2007}\u{200a}\u{202f}\u{205f}\u{2800}\u{3000}";
        let none = "\u{fdd0}\u{fdef}\u{fffe}\u{ffff}\u{1fffe}\u{2ffff}\u{dffff}";
        for character in [hidden, controls, blanks, none].concat().chars() {
            assert!(is_unprintable(character), "U+{:04X}", u32::from(character));
        }
    }

    #[test]
    fn letters_of_any_script_are_not() {
        for character in " az09-…–×°éשя日한क😀\u{301}\u{fdf0}\u{2801}".chars() {
            assert!(!is_unprintable(character), "U+{:04X}", u32::from(character));
        }
    }
}
