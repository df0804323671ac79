/** The frame around the views: how the one who answers is, tabs, keys, help. */

import { render, type ComponentChild } from "preact";
import { useEffect, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { dark, turnTheme } from "./colours";
import { clock, count, DASH, seconds, shorten } from "./format";
import { isReport, report, type Report } from "./held";
import { health, heard, life, overview, replaced, watch } from "./link";
import { writing } from "./parts/small";
import { bare, go, href, route } from "./route";
import { Casts } from "./views/casts";
import { Groups } from "./views/groups";
import { Logs } from "./views/logs";
import { Overview } from "./views/overview";
import { Profile } from "./views/profile";
import { Service } from "./views/service";
import { Shuffles } from "./views/shuffles";
import { Stream } from "./views/stream";
import { Task } from "./views/task";
import { Transfers } from "./views/transfers";
import { Workers } from "./views/workers";
import "./style.css";

const VIEWS = [
  { id: "overview", title: "Overview", key: "1", view: Overview },
  { id: "stream", title: "Task stream", key: "2", view: Stream },
  { id: "groups", title: "Groups", key: "3", view: Groups },
  { id: "workers", title: "Workers", key: "4", view: Workers },
  { id: "transfers", title: "Transfers", key: "5", view: Transfers },
  { id: "shuffles", title: "Shuffles", key: "6", view: Shuffles },
  { id: "profile", title: "Profile", key: "7", view: Profile },
  { id: "logs", title: "Logs", key: "8", view: Logs },
  { id: "task", title: "Task", key: "9", view: Task },
  { id: "casts", title: "Casts", key: "0", view: Casts },
] as const;
/** Those of a process of the shuffle service. */
const OF_SERVICE = [{ id: "service", title: "Shuffle service", key: "1", view: Service }] as const;

function views(): readonly { id: string; title: string; key: string; view: () => ComponentChild }[] {
  return overview.value?.service ? OF_SERVICE : VIEWS;
}

/** Who answers. */
function who(): string {
  const service = overview.value?.service;
  return service ? `shuffle ${service.role}` : "scheduler";
}

const help = signal(false);

addEventListener("keydown", (event) => {
  if (writing(event)) return;
  if (event.key === "?") help.value = !help.value;
  else if (event.key === "Escape" && help.value) help.value = false;
  else if (event.key === "/") {
    event.preventDefault();
    go("task");
  } else if (event.key === "t") turnTheme();
  else {
    const view = views().find(({ key }) => key === event.key);
    if (view) go(view.id);
  }
});

/** Counts the seconds while the scheduler is silent. */
function Silence({ since }: { since: number }) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((n) => n + 1), 500);
    return () => clearInterval(timer);
  }, []);
  return <>{seconds(Math.max(0, Math.floor((performance.now() - since) / 1000)))}</>;
}

function Lost() {
  const now = health.value;
  const begun = replaced.value;
  if (now.is === "lost" && heard === 0) {
    return (
      <p class="banner bad" role="alert" data-health="lost">
        <b>✕ The scheduler does not answer</b> ({shorten(now.why, 120)}), for <Silence since={now.since} />. This page asks again by itself.
      </p>
    );
  }
  if (now.is === "lost") {
    const last = Date.now() / 1000 - (performance.now() - heard) / 1000;
    return (
      <p class="banner bad" role="alert" data-health="lost">
        <b>✕ The {who()} is lost</b> ({shorten(now.why, 120)}) for <Silence since={now.since} />. What is shown is of {clock(last)}. This page asks again by itself.
      </p>
    );
  }
  if (now.is === "refused") {
    return (
      <p class="banner bad" role="alert" data-health="refused">
        <b>✕ The {who()} refuses this page's token.</b> It may have started anew: open its new link
        {who() === "scheduler" && (
          <>
            {" "}
            (<code>client.dashboard_link</code>)
          </>
        )}
        .
      </p>
    );
  }
  if (now.is === "busy") {
    return (
      <p class="banner warn" role="status" data-health="busy">
        <b>▲ The {who()} is busy</b> for <Silence since={now.since} />: this page asks less often.
      </p>
    );
  }
  if (begun !== undefined) {
    return (
      <p class="banner note" role="status" data-health="replaced">
        <b>● A new {who()} answers here</b> since {clock(begun)}. What the one before knew is gone.{" "}
        <button type="button" onClick={() => (replaced.value = undefined)}>
          ok
        </button>
      </p>
    );
  }
  return null;
}

function State() {
  const now = overview.value;
  const is = health.value.is;
  const [sign, text, kind] =
    is === "well"
      ? now?.live === false
        ? ["◆", isReport ? "report" : "history", "history"]
        : ["●", "live", "live"]
      : is === "opening"
        ? ["○", "opening", ""]
        : is === "busy"
          ? ["▲", "busy", "warn"]
          : ["✕", is, "bad"];
  return (
    <span class={`state-of ${kind}`} title={now ? `up ${seconds(now.now / 1e9)}` : ""}>
      <b aria-hidden="true">{sign}</b> {text}
    </span>
  );
}

/** What a report is of. */
function About() {
  const [about, setAbout] = useState<Report>();
  useEffect(() => {
    if (isReport) void report().then(setAbout);
  }, []);
  if (about === undefined) return null;
  return (
    <details class="about">
      <summary>A report, made at {clock(about.made)}{about.code && ", of this code"}</summary>
      {about.code && <pre>{about.code}</pre>}
    </details>
  );
}

const KEYS: [string, string][] = [
  ["1 … 9 0", "the views"],
  ["/", "find a task by its key"],
  ["t", "light or dark"],
  ["?", "this help"],
  ["", "in the task stream"],
  ["wheel", "zoom; with shift: pan; over the names: scroll"],
  ["drag", "zoom into what is marked; with shift, or on the axis: pan"],
  ["click", "the task under the mouse"],
  ["double click", "zoom out"],
  ["← →  + −", "pan, zoom"],
  ["w  f", "the whole run; follow its end"],
  ["g", "lanes by worker or by group"],
  ["[  ]", "flatter, taller lanes"],
  ["", "in the profile"],
  ["click", "that place alone, with what it calls"],
  ["↑ ↓ ← →", "what called it, what it calls, the others"],
  ["Esc", "all"],
];

function Help() {
  if (!help.value) return null;
  return (
    <div class="veil" onClick={() => (help.value = false)}>
      <section class="help" role="dialog" aria-label="Keys" onClick={(event) => event.stopPropagation()}>
        <button type="button" class="close" aria-label="close" onClick={() => (help.value = false)}>
          ✕
        </button>
        <h2>Keys</h2>
        <dl>
          {KEYS.map(([key, does]) => (
            <div key={does} class={key === "" ? "heading" : ""}>
              <dt>{key && <kbd>{key}</kbd>}</dt>
              <dd>{does}</dd>
            </div>
          ))}
        </dl>
        <p class="note">The address of this page contains the scheduler's token: who has the link sees all that you see.</p>
      </section>
    </div>
  );
}

function Page() {
  const { view } = route.value;
  const now = overview.value;
  const all = views();
  const shown = all.find(({ id }) => id === view) ?? all[0]!;
  const bad = (now?.verdicts ?? []).filter((verdict) => verdict.severity !== "note").length;
  const Shown = shown.view;
  useEffect(() => {
    document.title = `${shown.title} · Treadle`;
    document.querySelector("nav.tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [shown]);
  if (bare) {
    return (
      <>
        <Lost />
        <main data-view={shown.id} class={`bare ${health.value.is === "lost" ? "stale" : ""}`}>
          <Shown key={`${shown.id} ${life.value}`} />
        </main>
        <Help />
      </>
    );
  }
  return (
    <>
      <header class="top">
        <strong class="mark">Treadle</strong>
        <State />
        <span class="where" title={shorten(now?.cluster?.address, 200)}>
          <bdi>{shorten(now?.cluster?.address ?? DASH, 48)}</bdi>
        </span>
        <span class="push" />
        <button type="button" onClick={turnTheme} title="t" aria-label={dark.value ? "light theme" : "dark theme"}>
          {dark.value ? "☀" : "☾"}
        </button>
        <button type="button" onClick={() => (help.value = true)} title="?" aria-label="help">
          ?
        </button>
      </header>
      <nav class="tabs" aria-label="Views">
        {all.map(({ id, title, key }) => (
          <a key={id} href={href(id)} aria-current={id === shown.id ? "page" : undefined} title={key}>
            {title}
            {id === "overview" && bad > 0 && <sup>{count(bad)}</sup>}
          </a>
        ))}
      </nav>
      <Lost />
      <About />
      <main data-view={shown.id} class={health.value.is === "lost" ? "stale" : ""}>
        <Shown key={`${shown.id} ${life.value}`} />
      </main>
      <Help />
    </>
  );
}

watch();
render(<Page />, document.getElementById("page")!);
