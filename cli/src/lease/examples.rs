//! What the help of `bailiff lease` and of its commands says last.

pub(crate) const LEASE: &str = "\
Examples:
  sudo bailiff lease init                    at each boot: which GPUs are handed out
  bailiff lease run -- python train.py       waits its turn, and gives the GPU back at the end
  bailiff lease list                         who has which, and who waits
  eval \"$(bailiff lease acquire)\"            a GPU for this shell, as long as it lives
  bailiff lease release                      gives that GPU back earlier

Exit codes: 0 done, 3 the lease is somebody else's, or not held any more, 4 nobody knows a lease of
that name, 64 invalid arguments, 69 no pool, or Redis does not answer, 74 the lease was lost, and
the command with it, 75 not enough GPUs are idle, 124 the time was up; `run` ends as its command.";

pub(crate) const RUN: &str = "\
Examples:
  bailiff lease run -- python train.py       one GPU; waits as long as it takes
  bailiff lease run -n 2 --wait 30m -- torchrun --nproc-per-node 2 train.py
                                             two, or exit code 124 after half an hour
  bailiff lease run --gpu 0,1 --nonblock -- ./job
                                             just these, or exit code 75 at once
  bailiff lease run --max-time 4h -- ./job   is told to end after four hours
  bailiff lease run -- ./job --device {index}
                                             for a program that wants a number

Exit codes:
  the command's own; 128 and the signal's number where one ended it, or the wait for GPUs;
  126 and 127 where it cannot run
  124   not within --wait; --max-time was up, and the command had not ended
  75    not enough GPUs are idle (--nonblock)
  74    the lease was lost, and the command was ended for it (--on-lost term, kill)
  69    no pool, or Redis does not answer; a number means another GPU now (--index)
  64    invalid flags, or more GPUs than there are
  3     somebody has taken it out of the line";

pub(crate) const ACQUIRE: &str = "\
Examples:
  eval \"$(bailiff lease acquire)\"            a GPU for this shell, as long as it lives
  lease=$(bailiff lease acquire --wait 1h) && eval \"$lease\"
                                             where the exit code matters: eval loses it
  bailiff lease acquire -n 2 --for 4711 --format ids
                                             two for process 4711, until it ends
  bailiff lease acquire --duration 2h        for two hours, whoever lives or dies

Exit codes: 0 done, 1 it cannot be printed, and nothing is taken, 3 somebody has taken it out
of the line, 64 invalid flags, no such process, or more GPUs than there are, 69 no
pool, Redis does not answer, or the pool knows no UUIDs (--format uuid), 75 not enough GPUs are
idle (--nonblock), 124 not within --wait.";

pub(crate) const ADOPT: &str = "\
Examples:
  bailiff lease adopt --gpu 3 --pid 4711     prints the lease, which ends with that process
  bailiff lease adopt --gpu 0,1 --pid 4711   all of them or none

Exit codes: 0 done, 64 invalid flags, no such process or GPU, 69 no pool, or Redis does
not answer, 75 somebody leases that GPU.";

pub(crate) const RELEASE: &str = "\
Examples:
  bailiff lease release                      the lease in BAILIFF_LEASE_ID, as acquire has set it
  bailiff lease release --gpu 3              the lease of GPU 3
  bailiff lease release --mine               all that you took with acquire and adopt: how many

Exit codes: 0 it is free now, or was before, 3 it is somebody else's, a command has it and ends
with it, or no lease holds that GPU, 4 nobody knows a lease of that name, 64 invalid flags,
or no such GPU, 69 no pool, or Redis does not answer.";

pub(crate) const EXTEND: &str = "\
Examples:
  bailiff lease extend $BAILIFF_LEASE_ID 2h  ends two hours from now
  bailiff lease extend --redis redis://gpu1 $BAILIFF_LEASE_ID 30m

That is for leases with an end, of `acquire --duration` and `run --max-time`, in Redis.

Exit codes: 0 done, 3 it is not held any more, 4 nobody knows a lease of that name, 64 invalid
flags, a lease without an end, or this machine's own pool, 69 Redis does not answer.";

pub(crate) const LIST: &str = "\
Examples:
  bailiff lease list
  bailiff lease list --json | jq -r '.gpus[] | select(.state == \"idle\") | .id'
  bailiff lease list --redis redis://gpu1    a pool in Redis

Exit codes: 0 done, 64 invalid flags, 69 no pool, or Redis does not answer.";

pub(crate) const STATUS: &str = "\
Examples:
  bailiff lease status
  bailiff lease status --json | jq .gpus.idle   how many GPUs are idle

Exit codes: 0 done, 64 invalid flags, 69 no pool, or Redis does not answer.";

pub(crate) const QUEUE: &str = "\
Examples:
  bailiff lease queue
  bailiff lease queue --json | jq length     how many wait

Exit codes: 0 done, 64 invalid flags, 69 no pool, or Redis does not answer.";

pub(crate) const LOG: &str = "\
Examples:
  bailiff lease log --redis redis://gpu1     the last 100 events
  bailiff lease log -f -n 0                  what happens from now on; LEASE_REDIS_URL says where
  bailiff lease log --json | jq -r 'select(.event == \"grant\") | .time'

Exit codes: 0 done, 64 invalid flags, or this machine's own pool, which keeps no log, 69
Redis does not answer.";

pub(crate) const INIT: &str = "\
Examples:
  sudo bailiff lease init                    all GPUs that the driver has
  sudo bailiff lease init --gpus 0,1,4-7     six of them
  sudo bailiff lease init --gpus 0-3 --force
                                             others than before, once nobody holds a lease

Exit codes: 0 done, 64 invalid flags, it was begun before, or there is no such GPU, 69 no
driver tells the GPUs (--gpus does), Redis does not answer, or the directory may not be used, 75
somebody holds a lease (--force).";

pub(crate) const REAP: &str = "\
Examples:
  bailiff lease reap --dry-run               whose GPUs would be freed, and why
  bailiff lease reap                         frees them, and prints how many
  bailiff lease reap --legacy                those taken with GPU.py too

Exit codes: 0 done, however many, 64 invalid flags, 69 no pool, or Redis does not
answer.";
