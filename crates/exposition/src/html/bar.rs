//! Stacked bars, with the same amounts as text. A bar is drawn only if all its parts were observed.

use super::Html;

/// Width of a bar, and the smallest width at which a part is visible, in SVG units.
const LENGTH: f64 = 1000.0;
const THINNEST: f64 = 6.0;

/// A stacked bar: a total and its parts.
#[derive(Debug)]
pub struct Bar<'a> {
    /// Name of the total, for the accessible label of the bar.
    pub of: &'a str,
    /// Parts of the total, from left to right.
    pub parts: &'a [Part],
}

/// One part of a bar.
#[derive(Debug, Clone)]
pub struct Part {
    /// CSS class that sets the colour.
    pub class: &'static str,
    /// Name of the part.
    pub name: &'static str,
    /// Share of the total, 0 to 1.
    pub share: f64,
    /// Amount as text.
    pub text: String,
}

impl Bar<'_> {
    /// Draws the bar as SVG.
    pub fn draw(&self, html: &mut Html) {
        let texts: Vec<String> =
            self.parts.iter().map(|part| format!("{} {}", part.name, part.text)).collect();
        html.raw("<svg class=\"bar\" role=\"img\" viewBox=\"0 0 1000 10\" preserveAspectRatio=\"none\"");
        html.attribute("aria-label", &format!("{}: {}", self.of, texts.join(", ")));
        html.raw("><rect class=\"track\" width=\"1000\" height=\"10\"/>");
        let mut from = 0.0;
        for part in self.parts.iter().filter(|part| part.share > 0.0) {
            let length = (part.share * LENGTH).max(THINNEST).min(LENGTH - from);
            html.raw("<rect height=\"10\"");
            html.attribute("class", part.class);
            html.attribute("x", &format!("{from:.1}"));
            html.attribute("width", &format!("{length:.1}"));
            html.raw("/>");
            from += length;
        }
        html.raw("</svg>");
    }

    /// Writes the parts as a list, each with its colour, name and amount.
    pub fn legend(&self, html: &mut Html) {
        html.list(&[("class", "legend")], self.parts, |html, part| {
            html.raw("<span class=\"name\"><svg class=\"key\" viewBox=\"0 0 10 10\" aria-hidden=\"true\"><rect width=\"10\" height=\"10\"");
            html.attribute("class", part.class);
            html.raw("/></svg>");
            html.text(part.name);
            html.raw("</span> ");
            html.element("span", &[("class", "n")], |html| html.text(&part.text));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &'static str, share: f64) -> Part {
        Part { class: name, name, share, text: format!("{share}") }
    }

    #[test]
    fn bar_has_every_part_as_text_and_draws_those_above_zero() {
        let parts =
            [part("held", 0.5), part("reserved", 0.001), part("unaccounted", -0.1), part("free", 0.6)];
        let mut html = Html::default();
        Bar { of: "memory", parts: &parts }.draw(&mut html);
        let html = html.0;
        assert!(
            html.contains("aria-label=\"memory: held 0.5, reserved 0.001, unaccounted -0.1, free 0.6\""),
            "{html}"
        );
        assert!(
            html.contains("class=\"reserved\" x=\"500.0\" width=\"6.0\""),
            "a thin part must be visible: {html}"
        );
        assert!(
            html.contains("class=\"free\" x=\"506.0\" width=\"494.0\""),
            "the parts must not be longer than the bar: {html}"
        );
        assert!(!html.contains("class=\"unaccounted\""), "{html}");
    }
}
