import { readFileSync } from "node:fs";
import { defineConfig } from "vite";

/** The licences of what is built in: their texts go with it. */
function licences(): string {
  const packages = ["preact", "@preact/signals", "@preact/signals-core", "uplot"];
  const texts = packages.map((name) => {
    const text = readFileSync(new URL(`node_modules/${name}/LICENSE`, import.meta.url), "utf8");
    const lines = text.split("\n").map((line) => line.trim());
    return { name, holder: lines.find((line) => /^copyright/i.test(line)), text: lines.filter((line) => !/^copyright|^the mit license/i.test(line)) };
  });
  const heads = texts.map(({ name, holder }) => `${name}: ${holder}`);
  return `/*!\nTreadle, Apache-2.0, with these under the MIT licence:\n${heads.join("\n")}\n\n${texts[0].text.join("\n").trim()}\n*/\n`;
}

export default defineConfig({
  // Behind a proxy the page has a prefix that it does not know.
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    target: "es2022",
    modulePreload: false,
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    rollupOptions: {
      output: {
        // The server says `no-cache`: names without digests keep the history of dist small.
        entryFileNames: "assets/page.js",
        assetFileNames: "assets/page[extname]",
      },
    },
  },
  plugins: [
    {
      name: "licences",
      generateBundle(_, bundle) {
        for (const file of Object.values(bundle)) {
          if (file.type === "chunk") file.code = licences() + file.code;
        }
      },
    },
    {
      name: "same-origin",
      // `crossorigin` would ask for headers that the server need not send.
      transformIndexHtml: (html) => html.replaceAll(" crossorigin", ""),
    },
  ],
});
