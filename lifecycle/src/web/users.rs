//! Users and passwords of basic authentication. To look at a password takes a tenth of a second of a processor, so
//! one is looked at at a time, and a good one is remembered, by a keyed hash of it.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bcrypt::HashParts;
use hyper::header::{AUTHORIZATION, HeaderMap};
use ring::hmac;
use ring::rand::SystemRandom;
use serde_saphyr::Spanned;
use tokio::sync::Semaphore;

use super::fault::Wrong;
use super::written::Text;

const KEY: &str = "basic_auth_users";
/// The costs that a password may have: more than 14 is more than a second for each look.
const COSTS: std::ops::RangeInclusive<u32> = 4..=14;

/// Who may ask.
pub(super) struct Users {
    hashes: BTreeMap<String, String>,
    /// Under which good passwords are remembered; of this process alone.
    key: hmac::Key,
    /// The last good password of each user, under the key. Wrong ones are not remembered: they would push out the good.
    good: Mutex<BTreeMap<String, hmac::Tag>>,
    turn: Arc<Semaphore>,
}

impl Users {
    pub(super) fn new(written: &Spanned<BTreeMap<String, Text>>) -> Result<Self, Wrong> {
        if written.value.is_empty() {
            return Err(Wrong::at(written, KEY, "it names nobody; leave the key out to ask for no password"));
        }
        let hashes =
            written.value.iter().map(|(user, hash)| checked(user, hash)).collect::<Result<_, _>>()?;
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        let key = key.map_err(|_| Wrong::at(written, KEY, "the system has no random bytes for us"))?;
        Ok(Self { hashes, key, good: Mutex::default(), turn: Arc::new(Semaphore::new(1)) })
    }

    /// Whether whoever sends these headers is one of them.
    pub(super) async fn admit(&self, headers: &HeaderMap) -> bool {
        let Some(said) = credentials(headers) else { return false };
        let Some(colon) = said.iter().position(|byte| *byte == b':') else { return false };
        let user = str::from_utf8(&said[..colon]).unwrap_or_default();
        if self.remembers(user, &said) {
            return true;
        }
        let known = self.hashes.get(user);
        // A hash of somebody's for whom nobody knows: the time that an answer takes tells nobody's name.
        let Some(hash) = known.or_else(|| self.hashes.values().next()) else { return false };
        let fits = self.fits(said[colon + 1..].to_vec(), hash.clone()).await;
        let good = known.is_some() && fits;
        if good {
            let tag = hmac::sign(&self.key, &said);
            self.good.lock().unwrap_or_else(PoisonError::into_inner).insert(user.to_owned(), tag);
        }
        good
    }

    fn remembers(&self, user: &str, said: &[u8]) -> bool {
        let good = self.good.lock().unwrap_or_else(PoisonError::into_inner);
        good.get(user).is_some_and(|tag| hmac::verify(&self.key, said, tag.as_ref()).is_ok())
    }

    /// Takes its turn, also where who asked has gone meanwhile.
    async fn fits(&self, password: Vec<u8>, hash: String) -> bool {
        let Ok(turn) = Arc::clone(&self.turn).acquire_owned().await else { return false };
        let looked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            bcrypt::verify(password, &hash).unwrap_or(false)
        });
        looked.await.unwrap_or(false)
    }
}

fn checked(user: &str, hash: &Text) -> Result<(String, String), Wrong> {
    let wrong = |why: &str| Err(Wrong::at(hash, &format!("{KEY}.{user}"), why));
    if user.contains(':') {
        return wrong("a name with a colon cannot be sent; write one without");
    }
    // What stands there may be a password: it is not shown.
    match HashParts::from_str(&hash.value) {
        Err(_) => wrong("it is no bcrypt hash; `htpasswd -nBC 10 NAME` makes one"),
        Ok(parts) if !COSTS.contains(&parts.get_cost()) => wrong(
            "its cost is not from 4 to 14: more is seconds for each look; `htpasswd -nBC 10 NAME` makes one of 10",
        ),
        Ok(_) => Ok((user.to_owned(), hash.value.clone())),
    }
}

/// `USER:PASSWORD`, as RFC 7617 packs it.
fn credentials(headers: &HeaderMap) -> Option<Vec<u8>> {
    let (scheme, packed) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    STANDARD.decode(packed.trim_start_matches(' ')).ok()
}
