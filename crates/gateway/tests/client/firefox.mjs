// The page in Firefox, driven by puppeteer over WebDriver BiDi. Called by page_firefox.py with the page's address and its
// token; the thread `inbox` has one consumer, `seller`, with two dead letters.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";

const require = createRequire(path.join(process.env.GATEWAY_PUPPETEER, "node_modules", "_.js"));
const { default: puppeteer } = await import(require.resolve("puppeteer-core"));

const [url, token, executablePath, patience] = process.argv.slice(2);
const browser = await puppeteer.launch({ browser: "firefox", executablePath, headless: true, timeout: Number(patience) });
try {
  const page = await browser.newPage(), errors = [];
  page.setDefaultTimeout(Number(patience));
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  const text = (selector) => page.waitForSelector(selector).then((found) => found.evaluate((e) => e.textContent));
  const until = async (what, is) => {
    for (let n = 0; !(await is()); n++) {
      assert(n < Number(patience) / 50, what);
      await new Promise((done) => setTimeout(done, 50));
    }
  };

  // A conversation.
  await page.setViewport({ width: 1200, height: 800 });
  await page.goto(`${url}/#token=${token}`);
  await page.waitForSelector(".welcome #message:focus");
  await page.keyboard.type("look");
  // Without a display there is no pointer that hovers, so Enter makes a new line, as on a phone.
  await page.click(".composer .primary");
  await until("an answer", async () => (await text(".answer")).includes("The end."));
  assert.equal(await text(".answer strong"), "end");
  assert.equal(await text(".tool .name"), "read");
  await until("colours", async () => (await text(".answer pre")).includes("chown") && page.$(".answer [class^=t-]"));
  await page.$eval(".run .head a", (link) => link.click());
  await page.waitForSelector(".beside .trace tr.is-tool");

  // The table of a queue.
  await page.$eval(".halves a:last-child", (link) => link.click());
  await page.waitForSelector(".threads a.row");
  await page.goto(`${url}/#/look/inbox`);
  await until("the dead letters", async () => (await text(".verdict")).includes("2 dead letters"));
  assert.equal((await text(".consumers h2")).trim(), "seller");
  await page.waitForSelector(".chart svg");

  // As wide as a phone, all of it fits.
  await page.setViewport({ width: 390, height: 760 });
  for (const address of ["#/look/inbox", "#/look/inbox/events", "#/look/inbox/dead", "#/"]) {
    await page.goto(`${url}/${address}`);
    await page.waitForSelector(address === "#/" ? ".sessions a.session" : ".look .tabs");
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    assert(wide <= 390, `${address}: ${wide}`);
  }
  await page.$eval(".sessions a.session", (link) => link.click());
  await until("the conversation", async () => (await text(".answer")).includes("The end."));
  assert.deepEqual(errors, []);
} finally {
  await browser.close();
}
