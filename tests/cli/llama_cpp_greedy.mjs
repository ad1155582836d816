// Prints the tokens that llama.cpp chooses greedily: node llama_cpp_greedy.mjs FILE.gguf COUNT ID...
// Run from the folder whose node_modules has node-llama-cpp 3.21.1.
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";

const require = createRequire(process.cwd() + "/");
const {getLlama} = await import(pathToFileURL(require.resolve("node-llama-cpp")).href);
const [modelPath, count, ...ids] = process.argv.slice(2);
const llama = await getLlama({gpu: false, build: "never", logLevel: "error"});
const model = await llama.loadModel({modelPath});
const context = await model.createContext({contextSize: 16, threads: 1});
const tokens = [];
const options = {temperature: 0, yieldEogToken: true};
for await (const token of context.getSequence().evaluate(ids.map(Number), options)) {
  tokens.push(token);
  if (tokens.length == Number(count)) break;
}
console.log(JSON.stringify(tokens));
process.exit(0);
