//! Labels of the exporters' series in Prometheus: those of the exporter itself, and those of the scrape target.

use bailiff_prometheus::Labels;

/// Labels that differ between copies of a target's series: a target can be scraped by several servers or jobs.
const COPIES: [&str; 4] = ["__name__", "job", "replica", "prometheus_replica"];

/// Returns the labels that identify the scrape target; `own` are the exporter's labels of the series.
pub(crate) fn target(series: &Labels, own: &[&str]) -> Labels {
    let is_target = |name: &str| {
        !COPIES.contains(&name) && !own.contains(&name.strip_prefix("exported_").unwrap_or(name))
    };
    let labels = series.iter().filter(|(name, _)| is_target(name));
    labels.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Returns a label of the exporter. If the target has a label of the same name, Prometheus renames the exporter's.
pub(crate) fn own<'a>(series: &'a Labels, name: &str) -> &'a str {
    series.get(&format!("exported_{name}")).or_else(|| series.get(name)).map_or("", String::as_str)
}

/// Returns the name of a target.
pub(crate) fn instance(target: &Labels) -> &str {
    target.get("instance").map_or("without an instance label", String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_a_series_have_one_target() {
        let labels = |pairs: &[(&str, &str)]| -> Labels {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let first = labels(&[("__name__", "x"), ("instance", "n1"), ("job", "a"), ("user", "ada")]);
        let second = labels(&[("instance", "n1"), ("job", "b"), ("replica", "1"), ("user", "bob")]);
        assert_eq!(target(&first, &["user"]), target(&second, &["user"]));
        assert_eq!((own(&first, "user"), instance(&target(&first, &["user"]))), ("ada", "n1"));
        let renamed = labels(&[("instance", "n1"), ("user", "of-the-target"), ("exported_user", "ada")]);
        assert_eq!(
            (own(&renamed, "user"), target(&renamed, &["user"])),
            ("ada", labels(&[("instance", "n1")]))
        );
    }
}
