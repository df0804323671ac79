// Buttons say what they send: data-post, data-body. Everything else is plain pages.
"use strict";

const message = document.getElementById("message");

function say(text, isBad) {
  message.textContent = text;
  message.className = isBad ? "bad" : "";
  message.hidden = false;
}

async function send(path, body, method) {
  const answer = await fetch(path, {
    method: method ?? "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body ?? {}),
  });
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(told.detail ? String(told.detail) : `HTTP ${answer.status}`);
  return told;
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-post]");
  if (!button || (button.dataset.confirm && !confirm(button.dataset.confirm))) return;
  button.disabled = true;
  try {
    await send(button.dataset.post, JSON.parse(button.dataset.body ?? "{}"), button.dataset.method);
    if (button.dataset.next) location.href = button.dataset.next;
    else location.reload();
  } catch (error) {
    say(error.message, true);
    button.disabled = false;
  }
});

const rule = document.getElementById("rule");
if (rule) {
  document.getElementById("try").addEventListener("click", async () => {
    const tried = document.getElementById("tried");
    try {
      const told = await send("/api/rules/try", { rule: JSON.parse(rule.rule.value) });
      tried.textContent = told.sentence[0].toUpperCase() + told.sentence.slice(1) + (told.examples.length ? `: ${told.examples.join(", ")}` : "");
    } catch (error) {
      tried.textContent = error.message;
    }
    tried.hidden = false;
  });
  rule.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const kept = await send("/api/rules", { rule: JSON.parse(rule.rule.value), note: rule.note.value });
      location.href = `/rules/${kept.id}`;
      if (location.pathname === `/rules/${kept.id}`) location.reload();
    } catch (error) {
      say(error.message, true);
    }
  });
}

const period = document.getElementById("window");
if (period) {
  period.addEventListener("submit", async (event) => {
    event.preventDefault();
    // What is chosen is UTC, as all times of these pages.
    const seconds = (field) => Date.parse(`${field.value}Z`) / 1000;
    try {
      await send("/api/windows/add", { begins: seconds(period.begins), ends: seconds(period.ends), reason: period.reason.value });
      location.reload();
    } catch (error) {
      say(error.message, true);
    }
  });
}

const login = document.getElementById("login");
if (login) {
  const enter = async (token) => {
    try {
      await send("/login", { token });
      location.replace("/");
    } catch (error) {
      say(error.message, true);
    }
  };
  login.addEventListener("submit", (event) => {
    event.preventDefault();
    enter(login.token.value);
  });
  // A token after # is not sent to the server, and does not stay in the address.
  if (location.hash.length > 1) {
    const token = location.hash.slice(1);
    history.replaceState(null, "", location.pathname);
    enter(token);
  }
}
