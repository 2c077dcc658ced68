//! Teams of users, from a file in the format of `/etc/group` (group(5)).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bailiff_lifecycle::exit::plain;

use super::usage::{Usage, UserUse};

/// Row of the users that are in no team.
const NO_TEAM: &str = "(no team)";

/// Users, by team.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Teams(BTreeMap<String, BTreeSet<String>>);

impl Teams {
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("cannot read {}: {}", path.display(), plain(&error)))?;
        Self::parse(&text).map_err(|line| {
            let example = "such as physics:x:900:ada,bob (see getent group)";
            format!("{}:{line}: not a line in the format of /etc/group, {example}", path.display())
        })
    }

    /// Parses lines such as `physics:x:900:ada,bob`. The error is the number of an invalid line.
    fn parse(text: &str) -> Result<Self, usize> {
        let mut teams = Self::default();
        let lines = text.lines().map(str::trim).zip(1..);
        for (line, number) in lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#')) {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, _, users] = fields[..] else { return Err(number) };
            if name.is_empty() {
                return Err(number);
            }
            let users = users.split(',').map(str::trim).filter(|user| !user.is_empty());
            teams.0.entry(name.to_owned()).or_default().extend(users.map(str::to_owned));
        }
        Ok(teams)
    }

    /// Returns the sums of each team with a user in the report, and of the users without a team. A user in several teams
    /// counts for each.
    pub(super) fn sums(&self, usage: &Usage) -> Vec<(&str, UserUse)> {
        let mut sums: BTreeMap<&str, UserUse> = BTreeMap::new();
        for (user, uses) in &usage.users {
            let own = self.0.iter().filter(|(_, users)| users.contains(user)).map(|(team, _)| team.as_str());
            let mut own: Vec<&str> = own.collect();
            if own.is_empty() && !self.0.is_empty() {
                own.push(NO_TEAM);
            }
            for team in own {
                sums.entry(team).and_modify(|sum| sum.add(uses)).or_insert_with(|| uses.clone());
            }
        }
        sums.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_has_the_format_of_etc_group() {
        let users = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let text = "# teams\nphysics:x:900:ada,bob\n\n vision:*:901: cleo \nempty:x:902:\nphysics::903:dan\n";
        let teams = Teams::parse(text).unwrap();
        assert_eq!(teams.0["physics"], users(&["ada", "bob", "dan"]));
        assert_eq!((&teams.0["vision"], teams.0["empty"].len()), (&users(&["cleo"]), 0));
        for (text, line) in [("physics: ada", 1), ("a:x:1:b\n:x:1:b", 2), ("a:x:1:b:c", 1), ("{}", 1)] {
            assert_eq!(Teams::parse(text), Err(line), "{text}");
        }
    }
}
