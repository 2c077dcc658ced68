//! Basic authentication. Checking a password takes 0.1 s of CPU time, so only one password is checked at a
//! time, and clients take turns. A correct password is remembered by a keyed hash.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bcrypt::HashParts;
use hyper::header::{AUTHORIZATION, HeaderMap};
use ring::hmac;
use ring::rand::SystemRandom;
use serde_saphyr::Spanned;

use super::fault::ConfigError;
use super::turns::Turns;
use super::written::Text;

const KEY: &str = "basic_auth_users";
/// Accepted bcrypt costs. With a cost above 14, a check takes more than a second.
const COSTS: std::ops::RangeInclusive<u32> = 4..=14;

/// Maximum length of a password in bytes. bcrypt ignores the rest, so a longer password would be accepted with any
/// end.
const LONGEST: usize = 72;

/// Compares a password with a hash.
type Check = fn(&[u8], &str) -> bool;

/// Users and their password hashes.
pub(super) struct Users {
    hashes: BTreeMap<String, String>,
    /// Hash with the highest cost. It is checked for an unknown user, so that the response time does not reveal user
    /// names.
    costliest: String,
    check: Check,
    /// Whether a password was too long. It is logged once, because clients could fill the log otherwise.
    too_long: AtomicBool,
    /// Key for the remembered hashes, random for each process.
    key: hmac::Key,
    /// Keyed hash of each user's last correct password. Wrong passwords are not remembered, because they would
    /// displace correct passwords.
    good: Mutex<BTreeMap<String, hmac::Tag>>,
    turns: Arc<Turns>,
}

impl Users {
    pub(super) fn new(written: &Spanned<BTreeMap<String, Text>>) -> Result<Self, ConfigError> {
        if written.value.is_empty() {
            return Err(ConfigError::at(
                written,
                KEY,
                "the map is empty; to disable authentication, remove the key",
            ));
        }
        let mut hashes = BTreeMap::new();
        let mut costliest = (0, String::new());
        for (user, hash) in &written.value {
            let cost = checked_cost(user, hash)?;
            costliest = costliest.max((cost, hash.value.clone()));
            hashes.insert(user.clone(), hash.value.clone());
        }
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        let key =
            key.map_err(|_| ConfigError::at(written, KEY, "cannot read random bytes from the system"))?;
        Ok(Self {
            hashes,
            costliest: costliest.1,
            check: |password, hash| bcrypt::verify(password, hash).unwrap_or(false),
            too_long: AtomicBool::new(false),
            key,
            good: Mutex::default(),
            turns: Arc::default(),
        })
    }

    /// Copies remembered passwords whose bcrypt hashes are unchanged.
    pub(super) fn remember(&mut self, before: &Self) {
        let same = |user: &String| before.hashes.get(user) == self.hashes.get(user);
        let mut good = before.good.lock().unwrap_or_else(PoisonError::into_inner).clone();
        good.retain(|user, _| same(user));
        (self.key, self.good, self.turns) = (before.key.clone(), Mutex::new(good), Arc::clone(&before.turns));
    }

    /// Returns whether the headers contain valid credentials.
    pub(super) async fn admit(&self, headers: &HeaderMap, client: IpAddr) -> bool {
        let Some(given) = credentials(headers) else { return false };
        let Some(colon) = given.iter().position(|byte| *byte == b':') else { return false };
        let Ok(user) = str::from_utf8(&given[..colon]) else { return false };
        let password = &given[colon + 1..];
        if password.len() > LONGEST {
            self.log_too_long();
            return false;
        }
        if self.remembers(user, &given) {
            return true;
        }
        let known = self.hashes.get(user);
        let hash = known.unwrap_or(&self.costliest);
        let fits = self.fits((password.to_vec(), hash.clone()), client).await;
        let good = known.is_some() && fits;
        if good {
            let tag = hmac::sign(&self.key, &given);
            self.good.lock().unwrap_or_else(PoisonError::into_inner).insert(user.to_owned(), tag);
        }
        good
    }

    fn remembers(&self, user: &str, given: &[u8]) -> bool {
        let good = self.good.lock().unwrap_or_else(PoisonError::into_inner);
        good.get(user).is_some_and(|tag| hmac::verify(&self.key, given, tag.as_ref()).is_ok())
    }

    /// Waits for the client's turn and checks a password, even if the client disconnects meanwhile.
    async fn fits(&self, (password, hash): (Vec<u8>, String), client: IpAddr) -> bool {
        let Some(turn) = self.turns.next(client).await else { return false };
        let check = self.check;
        let checked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            check(&password, &hash)
        });
        checked.await.unwrap_or(false)
    }

    fn log_too_long(&self) {
        if !self.too_long.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a login was refused because its password is longer than 72 bytes, of which bcrypt ignores the rest; choose a shorter password"
            );
        }
    }
}

/// Validates a user, and returns the cost of the hash.
fn checked_cost(user: &str, hash: &Text) -> Result<u32, ConfigError> {
    let wrong = |why: &str| Err(ConfigError::at(hash, &format!("{KEY}.{user}"), why));
    if user.contains(':') {
        return wrong("user names must not contain a colon");
    }
    // The value may be a password, so it is not printed.
    match HashParts::from_str(&hash.value) {
        Err(_) => wrong("not a bcrypt hash; create one with `htpasswd -nBC 10 NAME`"),
        Ok(parts) if !COSTS.contains(&parts.get_cost()) => wrong(
            "the cost must be from 4 to 14, because higher costs take seconds per check; `htpasswd -nBC 10 NAME` uses 10",
        ),
        Ok(parts) => Ok(parts.get_cost()),
    }
}

/// Decodes `USER:PASSWORD` (RFC 7617).
fn credentials(headers: &HeaderMap) -> Option<Vec<u8>> {
    let (scheme, packed) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    STANDARD.decode(packed.trim_start_matches(' ')).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(of: &[(&str, String)]) -> Users {
        let lines: Vec<String> = of.iter().map(|(user, hash)| format!("{user}: {hash}\n")).collect();
        Users::new(&serde_saphyr::from_str(&lines.concat()).unwrap()).unwrap()
    }

    fn basic(given: &str) -> HeaderMap {
        let packed = format!("Basic {}", STANDARD.encode(given));
        HeaderMap::from_iter([(AUTHORIZATION, packed.parse().unwrap())])
    }

    #[tokio::test]
    async fn what_was_good_is_so_until_its_own_hash_changes() {
        let hash = |password: &str| bcrypt::hash(password, 4).unwrap();
        let (alices, bobs) = (hash("a"), hash("b"));
        let before = users(&[("alice", alices.clone()), ("bob", bobs)]);
        let client = [127, 0, 0, 1].into();
        assert!(before.admit(&basic("alice:a"), client).await && before.admit(&basic("bob:b"), client).await);
        let mut after = users(&[("alice", alices), ("bob", hash("c"))]);
        after.remember(&before);
        assert!(after.remembers("alice", b"alice:a") && !after.remembers("bob", b"bob:b"));
        assert!(!after.admit(&basic("bob:b"), client).await && after.admit(&basic("bob:c"), client).await);
    }

    /// Hashes that were compared, in order.
    static COMPARED: Mutex<Vec<String>> = Mutex::new(Vec::new());

    #[tokio::test]
    async fn unknown_user_costs_one_check_at_the_highest_cost() {
        let (cheap, costly) = (bcrypt::hash("a", 4).unwrap(), bcrypt::hash("b", 5).unwrap());
        let mut users = users(&[("alice", cheap.clone()), ("bob", costly.clone()), ("carol", cheap.clone())]);
        users.check = |_, hash| {
            COMPARED.lock().unwrap().push(hash.to_owned());
            true
        };
        let client = [127, 0, 0, 1].into();
        let longest = format!("mallory:{}", "x".repeat(LONGEST));
        for (given, admitted, compared) in [
            ("alice:x", true, Some(&cheap)),
            ("bob:x", true, Some(&costly)),
            ("mallory:x", false, Some(&costly)),
            (longest.as_str(), false, Some(&costly)),
            (&format!("{longest}x"), false, None),
        ] {
            COMPARED.lock().unwrap().clear();
            assert_eq!(users.admit(&basic(given), client).await, admitted, "{given}");
            assert_eq!(
                COMPARED.lock().unwrap().iter().collect::<Vec<_>>(),
                Vec::from_iter(compared),
                "{given}"
            );
        }
    }

    #[tokio::test]
    async fn password_is_refused_instead_of_truncated() {
        let password = "x".repeat(LONGEST);
        let users = users(&[("alice", bcrypt::hash(&password, 4).unwrap())]);
        let client = [127, 0, 0, 1].into();
        assert!(users.admit(&basic(&format!("alice:{password}")), client).await);
        assert!(!users.admit(&basic(&format!("alice:{password}x")), client).await);
        assert!(users.too_long.into_inner(), "it is logged");
    }
}
